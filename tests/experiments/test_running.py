"""Jobs become records once, whatever happens in between."""

import dataclasses
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cbml.errors import BadData, DamagedFile
from cbml.experiments import Sources, read_records, run_jobs, running
from cbml.experiments import jobs as job_records
from cbml.experiments.jobs import run_name
from cbml.runs import RunConfig, parse_overrides
from cbml.training import Callback, read_metrics, read_record
from tests.experiments import children
from tests.experiments.small import STEPS, job

ON_THE_TEST = {"validation": 0.0, "model_selection": "test"}


class Heard(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def step(self, report: object) -> None:
        self.steps += 1


def run(jobs: list, out: Path, root: Path) -> tuple[dict[str, int], int]:  # type: ignore[type-arg]
    heard = Heard()
    progress = run_jobs(jobs, out, sources=Sources(str(root)), callback=heard)
    return {k: v for k, v in dataclasses.asdict(progress).items() if v}, heard.steps


def test_a_trial_never_looks_at_the_test_and_its_run_is_used_again(
    root: Path, tmp_path: Path
) -> None:
    trial, final = job(scored=("validation",)), job(scored=("train", "test"))
    assert run([trial], tmp_path, root) == ({"done": 1}, STEPS)
    folder = tmp_path / "runs" / run_name(trial)
    assert read_record(folder)["test_evaluations"] == 0
    (record,) = read_records(tmp_path / "loss-ablation-laptop" / "tiny-trials.jsonl")
    assert set(record["scores"]) == {"validation"}
    assert record["trial"]
    assert run([final], tmp_path, root) == ({"done": 1}, 0), "scored, not trained again"
    assert run([trial, final], tmp_path, root) == ({"finished": 2}, 0)
    assert read_record(folder)["test_evaluations"] == 1
    (record,) = read_records(tmp_path / "loss-ablation-laptop" / "tiny.jsonl")
    assert set(record["scores"]) == {"train", "validation", "test"}
    assert {"recall@1", "recall@30", "map@r", "nmi"} <= set(record["scores"]["test"])


def test_a_job_with_a_record_is_done_without_its_run(root: Path, tmp_path: Path) -> None:
    trial, final = job(scored=("validation",)), job(scored=("train", "test"))
    run([trial, final], tmp_path, root)
    shutil.rmtree(tmp_path / "runs")
    assert run([trial, final], tmp_path, root) == ({"finished": 2}, 0)
    (tmp_path / "loss-ablation-laptop" / "tiny.jsonl").unlink()
    assert run([trial, final], tmp_path, root) == ({"finished": 1, "done": 1}, STEPS)


def test_a_record_tells_all_but_where_things_lie(root: Path, tmp_path: Path) -> None:
    run([job()], tmp_path, root)
    path = tmp_path / "loss-ablation-laptop" / "tiny.jsonl"
    (record,) = read_records(path)
    assert str(root) not in path.read_text()
    assert str(tmp_path) not in path.read_text()
    assert record["settings"]["data"] == "tiny"
    assert record["settings"]["learning_rate"] == 1e-3
    assert record["settings"]["loss_options"] == {"ratio.negative_scale": 0.2}
    assert {"commit", "torch", "processor", "packages"} <= set(record["environment"])
    assert record["seconds"] > 0
    assert record["images"]["counts"]["test"]["classes"] == 6
    assert record["terms"]["step"] == [*range(1, STEPS + 1)]
    assert {"loss", "positive", "negative", "variance"} < set(record["terms"])
    assert [step for step, _ in record["validation"]] == [0, 3, 6]


def test_model_selection_on_the_test_takes_the_best_of_its_scores(
    root: Path, tmp_path: Path
) -> None:
    honest = job()
    config = honest.config.replace(data=ON_THE_TEST)
    optimistic = dataclasses.replace(honest, config=config)
    run([optimistic], tmp_path, root)
    (record,) = read_records(tmp_path / "loss-ablation-laptop" / "tiny.jsonl")
    best = max(score for _, score in record["validation"])
    assert record["scores"]["test"]["recall@1"] == pytest.approx(best, abs=1e-5)
    assert record["images"]["counts"]["train"]["classes"] == 6, "no class is held out"


def test_model_selection_on_the_test_counts_its_evaluations(root: Path, tmp_path: Path) -> None:
    config = job().config.replace(data=ON_THE_TEST)
    run([dataclasses.replace(job(), config=config)], tmp_path, root)
    (record,) = read_records(tmp_path / "loss-ablation-laptop")
    assert record["test_evaluations"] == 1 + len(record["validation"]) == 4


def test_what_is_missing_for_one_keeps_no_other_waiting(root: Path, tmp_path: Path) -> None:
    missing = dataclasses.replace(
        job(),
        config=job().config.replace(
            **parse_overrides(["backbone=bn_inception", "weights=path:nowhere.pt"])
        ),
    )
    found, steps = run([missing, job()], tmp_path, root)
    assert (found["done"], steps) == (1, STEPS)
    ((reason, jobs),) = found["refused"].items()  # type: ignore[attr-defined]
    assert "nowhere.pt" in reason
    assert jobs == [missing.name]


@pytest.mark.parametrize("error", [DamagedFile, ConnectionError])
def test_what_is_damaged_or_out_of_reach_keeps_no_other_waiting(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    trained = running.trained_model

    def failing(config: RunConfig, *others: Any) -> Any:
        if config.training.seed == 0:
            raise error("weights: cannot be had")
        return trained(config, *others)

    monkeypatch.setattr(running, "trained_model", failing)
    jobs = [job(), job(seed=1)]
    found, _ = run(jobs, tmp_path, root)
    assert found == {"done": 1, "refused": {"weights: cannot be had": [jobs[0].name]}}


def test_a_record_keeps_the_versions_of_its_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job(), job(rate=1e30, row="too fast")]
    run(jobs, tmp_path, root)
    before = [record["environment"] for record in read_records(tmp_path)]
    assert all("numpy" in environment["packages"] for environment in before)
    monkeypatch.setattr(job_records, "package_versions", lambda: {"numpy": "of tomorrow"})
    assert run(jobs, tmp_path, root) == ({"finished": 2}, 0)
    assert [record["environment"] for record in read_records(tmp_path)] == before


def test_a_job_of_another_process_keeps_no_other_waiting(root: Path, tmp_path: Path) -> None:
    first, second = job(), job(seed=1)
    folder = tmp_path / "runs" / run_name(first)
    child = children.start(children.hold, folder, tmp_path / "won")
    while child.is_alive() and not (tmp_path / "won").exists():
        time.sleep(0.001)
    found, _ = run([first, second], tmp_path, root)
    assert found == {"elsewhere": 1, "done": 1}
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    assert run([first, second], tmp_path, root)[0] == {"done": 1, "finished": 1}


def test_images_of_another_set_are_refused(root: Path, tmp_path: Path) -> None:
    birds = tmp_path / "birds"
    birds.mkdir()
    (birds / "images.txt").write_text("1 001.Black_footed_Albatross/1.jpg\n")
    (birds / "image_class_labels.txt").touch()
    with pytest.raises(BadData, match=r"birds: this is cub; use --data cub"):
        run([job()], tmp_path, birds)
    cub, cars = (
        dataclasses.replace(job(), config=job().config.replace(data=name))
        for name in ("cub", "cars")
    )
    with pytest.raises(BadData, match="one place for cars, cub; choose one with --data"):
        run([cub, cars], tmp_path, birds)
    with pytest.raises(BadData, match="images: not recognized as CUB"):
        run([cub], tmp_path, root)


def test_one_file_of_weights_is_for_one_network(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    file.write_bytes(b"weights")
    sources = Sources(weights=str(file))
    given, none = job(), job()
    none = dataclasses.replace(
        none, config=none.config.replace(**parse_overrides(["weights=none"]))
    )
    named = sources.named([given, none])
    assert named[0].config.model.weights.startswith("sha256:")
    assert named[1].config.model.weights == "none"
    assert sources.local(none.config).model.weights == "none"
    other = dataclasses.replace(
        given, config=given.config.replace(**parse_overrides(["backbone=resnet18"]))
    )
    with pytest.raises(BadData, match="one file for conv4, resnet18"):
        sources.named([given, other])


def test_trials_of_rates_and_of_a_search_do_not_replace_each_other(
    root: Path, tmp_path: Path
) -> None:
    words = {"scored": ("validation",), "overrides": {"learning_rate": 0.001}}
    jobs = [
        dataclasses.replace(job(), learning_rate_from=one, **words) for one in ("trial", "search")
    ]
    run(jobs, tmp_path, root)
    records = read_records(tmp_path / "loss-ablation-laptop")
    assert sorted(record["learning_rate_from"] for record in records) == ["search", "trial"]


def test_numbers_that_go_bad_are_a_result(root: Path, tmp_path: Path) -> None:
    jobs = [job(rate=1e30, row="too fast"), job()]
    assert run(jobs, tmp_path, root)[0] == {"failed": 1, "done": 1}
    assert run(jobs, tmp_path, root) == ({"finished": 2}, 0)
    failed = [record["failed"] for record in read_records(tmp_path) if record["failed"]]
    assert len(failed) == 1
    assert "step" in failed[0]


def test_a_run_without_labels_is_a_unit_as_well(root: Path, tmp_path: Path) -> None:
    wanted = job(scored=("train", "test"))
    changes = ["labels=none", "clusters=4", "batch_range=8", "samples_per_class=2"]
    config = wanted.config.replace(
        **parse_overrides([*changes, "validate_every=0", "validation=0.0"])
    )
    wanted = dataclasses.replace(wanted, config=config)
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
    wanted = job(steps=40)
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
    jobs = [job(seed=seed) for seed in range(4)]
    cache = Path(os.environ["CBML_CACHE"])
    answers = [tmp_path / "a.json", tmp_path / "b.json"]
    out = tmp_path / "out"
    pair = [children.start(children.run, jobs, out, root, cache, path) for path in answers]
    for child in pair:
        child.join(120)
        assert child.exitcode == 0
    found = [json.loads(path.read_text()) for path in answers]
    assert sum(one["done"] for one in found) == 4, "each run once"
    assert run(jobs, out, root) == ({"finished": 4}, 0)
    records = read_records(out / "loss-ablation-laptop" / "tiny.jsonl")
    assert sorted(record["seed"] for record in records) == [0, 1, 2, 3]
    assert all(record["test_evaluations"] == 1 for record in records)
