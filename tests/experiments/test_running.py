"""Units become records once, whatever happens in between."""

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cbml.errors import BadData, DamagedFile
from cbml.experiments import Sources, read_records, records, run_units, running
from cbml.experiments.claims import Claim, ClaimLost
from cbml.experiments.units import run_name
from cbml.training import Listener, Recipe, read_metrics, read_record, with_overrides
from tests.experiments import children
from tests.experiments.small import STEPS, unit


class Heard(Listener):
    def __init__(self) -> None:
        self.steps = 0

    def step(self, report: object) -> None:
        self.steps += 1


def run(units: list, out: Path, root: Path) -> tuple[dict[str, int], int]:  # type: ignore[type-arg]
    heard = Heard()
    progress = run_units(units, out, sources=Sources(str(root)), listener=heard)
    return {k: v for k, v in dataclasses.asdict(progress).items() if v}, heard.steps


def test_a_trial_never_looks_at_the_test_and_its_run_is_used_again(
    root: Path, tmp_path: Path
) -> None:
    trial, final = unit(scored=("validation",)), unit(scored=("train", "test"))
    assert run([trial], tmp_path, root) == ({"done": 1}, STEPS)
    folder = tmp_path / "runs" / run_name(trial)
    assert read_record(folder)["test_looks"] == 0
    (record,) = read_records(tmp_path / "loss-ablation-laptop" / "tiny-trials.jsonl")
    assert set(record["scores"]) == {"validation"}
    assert record["trial"]
    assert run([final], tmp_path, root) == ({"done": 1}, 0), "scored, not trained again"
    assert run([trial, final], tmp_path, root) == ({"finished": 2}, 0)
    assert read_record(folder)["test_looks"] == 1
    (record,) = read_records(tmp_path / "loss-ablation-laptop" / "tiny.jsonl")
    assert set(record["scores"]) == {"train", "validation", "test"}
    assert {"recall@1", "recall@30", "map_at_r", "nmi"} <= set(record["scores"]["test"])


def test_a_record_tells_all_but_where_things_lie(root: Path, tmp_path: Path) -> None:
    run([unit()], tmp_path, root)
    path = tmp_path / "loss-ablation-laptop" / "tiny.jsonl"
    (record,) = read_records(path)
    assert str(root) not in path.read_text()
    assert str(tmp_path) not in path.read_text()
    assert record["settings"]["data"] == "tiny"
    assert record["settings"]["learning_rate"] == 1e-3
    assert record["settings"]["loss_options"] == {"ratio.negative_scale": 0.2}
    assert {"commit", "torch", "processor", "packages"} <= set(record["environment"])
    assert record["seconds"] > 0
    assert record["pictures"]["counts"]["test"]["classes"] == 6
    assert record["terms"]["step"] == [*range(1, STEPS + 1)]
    assert {"loss", "positive", "negative", "variance"} < set(record["terms"])
    assert [step for step, _ in record["validation"]] == [0, 3, 6]


def test_the_paper_s_protocol_chooses_on_the_test(root: Path, tmp_path: Path) -> None:
    honest = unit()
    recipe = dataclasses.replace(honest.recipe, validation=0.0)
    optimistic = dataclasses.replace(honest, protocol="paper", recipe=recipe)
    run([optimistic], tmp_path, root)
    (record,) = read_records(tmp_path / "loss-ablation-laptop" / "tiny.jsonl")
    best = max(score for _, score in record["validation"])
    assert record["scores"]["test"]["recall@1"] == pytest.approx(best, abs=1e-5)
    assert record["pictures"]["counts"]["train"]["classes"] == 6, "no class is held out"


def test_the_paper_s_protocol_counts_its_looks_at_the_test(root: Path, tmp_path: Path) -> None:
    recipe = dataclasses.replace(unit().recipe, validation=0.0)
    run([dataclasses.replace(unit(), protocol="paper", recipe=recipe)], tmp_path, root)
    (record,) = read_records(tmp_path / "loss-ablation-laptop")
    assert record["test_looks"] == 1 + len(record["validation"]) == 4


def test_what_is_missing_for_one_keeps_no_other_waiting(root: Path, tmp_path: Path) -> None:
    missing = dataclasses.replace(
        unit(),
        recipe=with_overrides(unit().recipe, ["backbone=bn_inception", "weights=path:nowhere.pt"]),
    )
    found, steps = run([missing, unit()], tmp_path, root)
    assert (found["done"], steps) == (1, STEPS)
    ((reason, units),) = found["refused"].items()  # type: ignore[attr-defined]
    assert "nowhere.pt" in reason
    assert units == [missing.name]


@pytest.mark.parametrize("error", [DamagedFile, ConnectionError])
def test_what_is_damaged_or_out_of_reach_keeps_no_other_waiting(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    trained = running._trained

    def failing(recipe: Recipe, *others: Any) -> Any:
        if recipe.seed == 0:
            raise error("weights: cannot be had")
        return trained(recipe, *others)

    monkeypatch.setattr(running, "_trained", failing)
    units = [unit(), unit(seed=1)]
    found, _ = run(units, tmp_path, root)
    assert found == {"done": 1, "refused": {"weights: cannot be had": [units[0].name]}}


def test_a_record_keeps_the_versions_of_its_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = [unit(), unit(rate=1e30, row="too fast")]
    run(units, tmp_path, root)
    before = [record["environment"] for record in read_records(tmp_path)]
    assert all("numpy" in environment["packages"] for environment in before)
    monkeypatch.setattr(records, "package_versions", lambda: {"numpy": "of tomorrow"})
    assert run(units, tmp_path, root) == ({"finished": 2}, 0)
    assert [record["environment"] for record in read_records(tmp_path)] == before


def test_a_claim_that_is_lost_keeps_no_other_waiting(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = unit(), unit(seed=1)
    stolen = tmp_path / "runs" / run_name(first)

    def check(claim: Claim) -> None:
        if claim.path.parent == stolen:
            raise ClaimLost(f"{stolen}: taken over by another process")

    monkeypatch.setattr(Claim, "check", check)
    found, _ = run([first, second], tmp_path, root)
    assert found == {"elsewhere": 1, "done": 1}


def test_pictures_of_another_set_are_refused(root: Path, tmp_path: Path) -> None:
    birds = tmp_path / "birds"
    birds.mkdir()
    for name in ("images.txt", "image_class_labels.txt"):
        (birds / name).touch()
    with pytest.raises(BadData, match=r"birds: this is cub; ask for it by --data cub"):
        run([unit()], tmp_path, birds)
    cub, cars = (
        dataclasses.replace(unit(), recipe=dataclasses.replace(unit().recipe, data=name))
        for name in ("cub", "cars")
    )
    with pytest.raises(BadData, match="one place for cars, cub; choose one by --data"):
        run([cub, cars], tmp_path, birds)
    with pytest.raises(BadData, match="pictures: nothing here is known from CUB"):
        run([cub], tmp_path, root)


def test_one_file_of_weights_is_for_one_network(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    file.write_bytes(b"weights")
    sources = Sources(weights=str(file))
    given, none = unit(), unit()
    none = dataclasses.replace(none, recipe=with_overrides(none.recipe, ["weights=none"]))
    named = sources.named([given, none])
    assert named[0].recipe.weights.startswith("sha256:")
    assert named[1].recipe.weights == "none"
    assert sources.local(none.recipe).weights == "none"
    other = dataclasses.replace(given, recipe=with_overrides(given.recipe, ["backbone=resnet18"]))
    with pytest.raises(BadData, match="one file for conv4, resnet18"):
        sources.named([given, other])


def test_trials_of_rates_and_of_a_search_do_not_replace_each_other(
    root: Path, tmp_path: Path
) -> None:
    words = {"scored": ("validation",), "overrides": ("learning_rate=0.001",)}
    units = [dataclasses.replace(unit(), rate_from=one, **words) for one in ("trial", "search")]
    run(units, tmp_path, root)
    records = read_records(tmp_path / "loss-ablation-laptop")
    assert sorted(record["rate_from"] for record in records) == ["search", "trial"]


def test_numbers_that_go_bad_are_a_result(root: Path, tmp_path: Path) -> None:
    units = [unit(rate=1e30, row="too fast"), unit()]
    assert run(units, tmp_path, root)[0] == {"failed": 1, "done": 1}
    assert run(units, tmp_path, root) == ({"finished": 2}, 0)
    failed = [record["failed"] for record in read_records(tmp_path) if record["failed"]]
    assert len(failed) == 1
    assert "step" in failed[0]


def test_a_run_without_labels_is_a_unit_as_well(root: Path, tmp_path: Path) -> None:
    wanted = unit(scored=("train", "test"))
    changes = ["labels=none", "clusters=4", "batch_range=8", "pictures_per_class=2"]
    recipe = with_overrides(wanted.recipe, [*changes, "validate_every=0", "validation=0.0"])
    wanted = dataclasses.replace(wanted, recipe=recipe)
    assert run([wanted], tmp_path, root) == ({"done": 1}, STEPS)
    (record,) = read_records(tmp_path / "loss-ablation-laptop")
    assert 0.0 <= record["scores"]["train"]["recall@1"] <= 1.0
    assert 0.0 <= record["scores"]["test"]["recall@1"] <= 1.0
    assert record["settings"]["clusters"] == 4
    assert run([wanted], tmp_path, root) == ({"finished": 1}, 0)


def wait_for_steps(folder: Path, count: int) -> None:
    while len(read_metrics(folder)) < count:
        time.sleep(0.005)


def test_a_killed_runner_is_followed_and_ends_as_the_unbroken_one(
    root: Path, tmp_path: Path
) -> None:
    wanted = unit(steps=40)
    cache = Path(os.environ["CBML_CACHE"])
    broken, answer = tmp_path / "broken", tmp_path / "answer.json"
    folder = broken / "runs" / run_name(wanted)
    for count in (4, 12):
        child = children.start(children.run, [wanted], broken, root, cache, answer)
        wait_for_steps(folder, count)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        assert not answer.exists(), "killed too late to test anything"
    child = children.start(children.run, [wanted], broken, root, cache, answer)
    child.join(120)
    assert json.loads(answer.read_text())["done"] == 1
    child = children.start(children.run, [wanted], tmp_path / "whole", root, cache, answer)
    child.join(120)
    (first,), (second,) = (read_records(tmp_path / name) for name in ("broken", "whole"))
    assert first["resumed"] == 2
    assert second["resumed"] == 0
    assert first["scores"] == second["scores"]
    assert first["terms"] == second["terms"]


def test_two_processes_divide_the_work(root: Path, tmp_path: Path) -> None:
    units = [unit(seed=seed) for seed in range(4)]
    cache = Path(os.environ["CBML_CACHE"])
    answers = [tmp_path / "a.json", tmp_path / "b.json"]
    out = tmp_path / "out"
    pair = [children.start(children.run, units, out, root, cache, path) for path in answers]
    for child in pair:
        child.join(120)
        assert child.exitcode == 0
    found = [json.loads(path.read_text()) for path in answers]
    assert sum(one["done"] for one in found) == 4, "each run once"
    assert run(units, out, root) == ({"finished": 4}, 0)
    records = read_records(out / "loss-ablation-laptop" / "tiny.jsonl")
    assert sorted(record["seed"] for record in records) == [0, 1, 2, 3]
    assert all(record["test_looks"] == 1 for record in records)
