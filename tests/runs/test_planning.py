"""The plan before the first step: what is chosen, what is recorded, and that a resume keeps it."""

import copy
from pathlib import Path

import pytest
import torch

from cbml.errors import BadData
from cbml.models import Embedder, Execution
from cbml.runs import (
    RunConfig,
    evaluate_run,
    load_splits,
    planning,
    recorded_config,
    resumed_config,
    run,
    score_split,
)
from cbml.runs.build import build_batches
from cbml.runs.defaults import FIRST_RUNS, larger_crop
from cbml.runs.planning import CROPS, ImageTime, Planner, Workload, with_crop
from cbml.training import (
    Callback,
    Distributed,
    Interrupted,
    StepReport,
    memory_budget,
    read_record,
)
from tests.training.small import class_folders


class Heard(Callback):
    def __init__(self, stop_at: int = 0) -> None:
        self.lines: list[str] = []
        self.counted: list[str] = []
        self.stop_at = stop_at

    def on_message(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, label: str) -> object:  # type: ignore[override]
        self.counted.append(label)
        return super().progress(label)

    def step(self, report: StepReport) -> None:
        if report.step == self.stop_at:
            raise Interrupted(2, report.step)


def small(source: Path, **training: object) -> RunConfig:
    training = {"steps": 2, "validate_every": 1, "checkpoint_every": 1} | training
    return RunConfig(
        str(source),
        model={"backbone": "conv4", "dim": 8, "crop": 16, "batch_norm": "frozen_statistics"},
        training=training,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("classes"))


def test_the_steps_are_the_most_that_fit() -> None:
    work = Workload(images=100, batch=10, held_out=20, once=50, validate_every=3)
    cost = ImageTime(training=0.5, forward=0.2, embedding=0.1)
    for seconds in (1.0, 40.0, 63.7, 200.0, 1999.0):
        for chunked in (False, True):
            steps = work.steps(cost, seconds, chunked=chunked)
            assert steps == 1 or work.seconds(cost, steps, chunked=chunked) <= seconds
            assert work.seconds(cost, steps + 1, chunked=chunked) > seconds
    # 50 images once, validations at 0, 3, 6 and 7, 7 steps of 10 images
    assert work.seconds(cost, 7, chunked=False) == pytest.approx(0.1 * (50 + 80) + 7 * 5)
    assert work.seconds(cost, 7, chunked=True) == pytest.approx(0.1 * (50 + 80) + 7 * 7)


def planner(config: RunConfig, per_pixel: float) -> Planner:
    """Whose seconds of an image are known, and grow with its pixels."""
    model = Embedder("conv4", dim=8, batch_norm="frozen_statistics")
    work = Workload(images=100, batch=6, held_out=10, once=10, validate_every=50)
    made = Planner(config, model, torch.nn.Identity(), Execution(), work)
    made._image_time = lambda crop, count: ImageTime(  # type: ignore[method-assign]
        3 * per_pixel * crop**2, per_pixel * crop**2, per_pixel * crop**2
    )
    return made


def test_a_pause_while_measuring_does_not_change_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, paused = (0.4, 0.1), (90.0, 60.0)
    times = iter([paused, paused, usual, usual, paused, usual])  # the first is never counted
    monkeypatch.setattr(Planner, "_passes", lambda *_: next(times))
    work = Workload(images=100, batch=8, held_out=10, once=10, validate_every=50)
    made = Planner(RunConfig("x"), Embedder("conv4", dim=8), torch.nn.Identity(), Execution(), work)
    cost = made._image_time(32, 8)
    assert (cost.training, cost.forward) == (0.4 / 8, 0.1 / 8)


def test_minutes_choose_the_largest_crop_that_leaves_time_for_a_hundred_steps() -> None:
    asked = RunConfig("x", training={"minutes": 2})
    assert planner(asked, 1e-9).choose().crop == CROPS[-1]
    middle = planner(asked, 2e-6).choose()
    assert middle.crop == 160
    assert middle.steps >= 100
    assert middle.seconds <= 120
    poor = planner(asked, 1e-3).choose()
    assert (poor.crop, poor.steps) == (CROPS[0], 1), "even one step takes longer"
    own = planner(asked.replace(model={"crop": 64}), 4e-6).choose()
    assert own.crop == 64
    first = planner(RunConfig("x"), 4e-6).choose()
    assert (first.crop, first.steps) == FIRST_RUNS["cpu"]["folder"][1:]


def test_the_plan_is_said_recorded_and_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    monkeypatch.setattr(planning, "CROPS", (12, 16))
    monkeypatch.setattr(planning, "_FEWEST_STEPS", 1)
    monkeypatch.setattr(Planner, "_image_time", lambda *_: ImageTime(0.01, 0.0, 0.0))
    open_config = small(source, steps=None, minutes=0.02).replace(model={"crop": 0})
    begun = Heard(stop_at=2)
    with pytest.raises(Interrupted):
        run(open_config, tmp_path / "run", callback=begun)
    assert not any("hardly changes" in line for line in begun.lines)
    chosen = recorded_config(tmp_path / "run")
    assert chosen.model.crop == 16
    assert chosen.training.minutes is None
    assert chosen.training.steps is not None
    assert chosen.training.chunk_size == 0
    assert chosen.training.choose_by == "map@r", "few held-out classes tell little"
    plan = read_record(tmp_path / "run")["plan"]
    assert (plan["steps"], plan["crop"]) == (chosen.training.steps, 16)
    assert plan["minutes_asked"] == 0.02
    monkeypatch.setattr(planning, "plan_run", None)  # a resumed run plans nothing
    # The library's way gives the config as it was, with its minutes.
    found = run(open_config, tmp_path / "run", resume=True, callback=heard)
    assert found.fitted.steps == chosen.training.steps
    assert not any(line.startswith("plan:") for line in heard.lines)
    more = resumed_config(tmp_path / "run", [f"steps={chosen.training.steps + 1}"])
    run(more, tmp_path / "run", resume=True, callback=Callback())
    with pytest.raises(BadData, match="fixed when it starts"):
        resumed_config(tmp_path / "run", ["minutes=3"])


def test_too_few_minutes_are_said_to_be_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "CROPS", (12,))
    monkeypatch.setattr(Planner, "_image_time", lambda *_: ImageTime(0.01, 0.0, 0.0))
    config = small(source, steps=None, minutes=0.02).replace(model={"crop": 0})
    heard = Heard()
    found = run(config, tmp_path / "run", callback=heard)
    (line,) = [line for line in heard.lines if "hardly changes" in line]
    assert f"leaves time for only {found.fitted.steps} steps; with fewer than about 100" in line


def test_planning_leaves_no_trace_in_what_is_learned(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    planned = run(small(source), tmp_path / "a", callback=heard)
    assert sum(line.startswith("plan: conv4 at 16 pixels") for line in heard.lines) == 1
    labels = {"images read", "held-out images embedded", "images embedded for the report"}
    assert labels <= set(heard.counted)

    def unplanned(made: Planner, *_: object) -> tuple[RunConfig, dict[str, object]]:
        return made.config.replace(training={"chunk_size": 0}), {}

    monkeypatch.setattr("cbml.runs.parts.plan_run", unplanned)
    plain = run(small(source), tmp_path / "b", callback=Callback())
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, planned.model.state_dict()[name]), name


def test_chunks_are_chosen_for_the_memory_and_kept_by_a_resume(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cbml.training.machine.EMBEDDED", 0)
    trial = planner(small(source), 1e-9)
    whole = trial.at(16)
    assert whole.chunk_size == 0
    trial.budget = whole.peak_bytes - 1
    cut = trial.at(16)
    assert 0 < cut.chunk_size < 6
    assert cut.peak_bytes < whole.peak_bytes
    trial.config = trial.config.replace(training={"chunk_size": 2})
    assert trial.at(16).chunk_size == 2
    monkeypatch.setattr(planning, "memory_budget", lambda device: 0.0)
    heard = Heard(stop_at=2)
    with pytest.raises(Interrupted):
        run(small(source, steps=3), tmp_path / "a", callback=heard)
    assert recorded_config(tmp_path / "a").training.chunk_size == 1
    assert any("in chunks of 1" in line for line in heard.lines)
    monkeypatch.setattr(planning, "memory_budget", lambda device: 1e12)
    resumed = run(small(source, steps=3), tmp_path / "a", resume=True, callback=Callback())
    straight = run(small(source, steps=3, chunk_size=1), tmp_path / "b", callback=Callback())
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_where_batch_norm_is_trained_there_are_no_chunks_and_a_line_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "memory_budget", lambda device: 0.0)
    heard = Heard()
    config = small(source, steps=1).replace(model={"batch_norm": "trained"})
    run(config, tmp_path / "run", callback=heard)
    assert recorded_config(tmp_path / "run").training.chunk_size == 0
    assert any("batch norm is trained" in line for line in heard.lines)


def test_the_budget_is_at_most_three_gigabytes() -> None:
    assert 0 < memory_budget(torch.device("cpu")) <= 3e9


def test_a_run_starts_from_an_earlier_one(source: Path, tmp_path: Path) -> None:
    first = run(small(source), tmp_path / "a", test=True, callback=Callback())
    begun = copy.deepcopy(first.model.state_dict())
    config = small(source, steps=1).replace(model={"start": str(tmp_path / "a"), "dim": 4})
    config = config.replace(optimizer={"learning_rate": 1e-12})
    second = run(config, tmp_path / "b", test=True, callback=Callback())
    assert second.config.model.dim == 8, "the network is that of the start"
    for name, tensor in second.model.state_dict().items():
        torch.testing.assert_close(tensor, begun[name], atol=1e-6, rtol=0)
    assert second.test_start == pytest.approx(first.test)
    record = read_record(tmp_path / "b")
    assert record["test_start"] == second.test_start
    assert record["model"]["provenance"].startswith(f"start: {tmp_path / 'a'}")


def test_pretrained_networks_are_searched_with_at_a_larger_size_than_trained() -> None:
    config = with_crop(RunConfig("x", model={"backbone": "resnet18", "crop": 96}))
    assert (config.model.crop, config.test_crop) == (96, 128)
    assert [larger_crop(crop) for crop in (64, 96, 128, 160, 192, 227)] == [
        *(96, 128, 160, 224, 224, 227),
    ]
    assert with_crop(RunConfig("emoji")).test_crop == 128
    assert with_crop(RunConfig("x", method="hdc")).test_crop == 128, "methods have one size"
    assert with_crop(RunConfig({"source": "x", "labels": "none"})).test_crop == 128
    scratch = RunConfig("x", model={"backbone": "resnet18", "crop": 96, "weights": "none"})
    assert with_crop(scratch).test_crop == 96, "only pretraining has seen larger images"
    own = RunConfig("x", model={"backbone": "resnet18", "crop": 96, "test_crop": 100})
    assert with_crop(own).test_crop == 100
    with pytest.raises(BadData, match="test_crop must be at least 1, got -1"):
        RunConfig("x", model={"test_crop": -1})


def test_a_run_trains_small_and_searches_large(source: Path, tmp_path: Path) -> None:
    heard, config = Heard(), small(source, steps=2).replace(model={"test_crop": 24})
    done = run(config, tmp_path / "run", test=True, callback=heard)
    assert any("at 16 pixels, 24 in searches" in line for line in heard.lines)
    assert done.model.preprocessing.crop == 24
    assert recorded_config(tmp_path / "run").model.crop == 16
    batches = build_batches(config, load_splits(config).train, Distributed())
    assert batches.batch(0, 0).pixels.shape[2:] == (16, 16)
    scores = evaluate_run(tmp_path / "run", split="test").scores.metrics
    assert scores["map@r"] == pytest.approx(done.test["map@r"])
    at_16 = done.model
    at_16.preprocessing = at_16.preprocessing.with_crop(16)
    other = score_split(at_16.eval(), load_splits(config), "test").metrics
    assert other["map@r"] != pytest.approx(done.test["map@r"]), "it is scored at the larger size"
    longer = config.replace(training={"steps": 3})
    assert run(longer, tmp_path / "run", resume=True, callback=Callback()).fitted.steps == 3
    again = config.replace(model={"start": str(tmp_path / "run"), "crop": 0, "test_crop": 0})
    second = run(again, tmp_path / "second", callback=Callback())
    assert (second.config.model.crop, second.config.test_crop) == (16, 24), "as the start"
