"""`cbml evaluate` scores what it is asked for, and counts looks at the test."""

import json
from pathlib import Path

import pytest

from cbml.models import Embedder, find_backbone
from cbml.runs import RunConfig
from cbml.training import read_record, update_record
from tests.fixtures import run_program as run
from tests.training.small import class_folders


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run folder as `cbml train` would leave it, without the training."""
    root = class_folders(tmp_path / "images")
    run = tmp_path / "run"
    preprocessing = find_backbone("conv4").preprocessing.with_crop(16)
    Embedder("conv4", dim=8, preprocessing=preprocessing).save(run / "model")
    model = {"backbone": "conv4", "crop": 16, "dim": 8}
    config = RunConfig({"source": str(root), "validation": 0.4}, model=model)
    update_record(run, {"config": config.as_dict(), "test_evaluations": 0})
    return run


def report(finished: Path) -> str:
    path = finished / "report.html"
    return path.read_text() if path.exists() else ""


def test_only_test_evaluations_are_counted(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, split, looks in (
        ([], "validation", 0),
        (["--split", "train"], "train", 0),
        (["--test"], "test", 1),
        (["--split", "test"], "test", 2),
    ):
        assert run(["evaluate", str(finished), *words, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["split"] == split
        assert 0 <= answer["scores"]["recall@1"] <= 1
        assert answer["conditions"]["kmeans_attempts"] == 1
        assert answer["conditions"]["queries"] > 0
        assert ("test, after" in report(finished)) == (looks > 0)
        assert read_record(finished)["test_evaluations"] == looks
    seen = read_record(finished)["test_conditions"]
    settings = {"kmeans_seed": 0, "kmeans_iterations": 20, "kmeans_attempts": 1}
    assert {name: seen[name] for name in settings} == settings
    assert run(["evaluate", str(finished), "--split", "all"]) == 0
    assert read_record(finished)["test_evaluations"] == 3
    data = read_record(finished)["config"]["data"]["source"]  # the same images by another way
    assert run(["evaluate", str(finished), data]) == 0
    assert read_record(finished)["test_evaluations"] == 4


def test_other_images_are_scored_whole(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = read_record(finished)["config"]["data"]["source"]
    assert run(["evaluate", str(finished), data]) == 0
    out = capsys.readouterr().out
    assert out.startswith("recall@1 ")
    images = int(out.partition("gallery: ")[2].split()[0])
    shown = [int(line[7:12]) for line in out.splitlines() if line.startswith("recall@")]
    assert shown == [k for k in (1, 2, 4, 8, 10, 100, 1000) if k < images]
    assert run(["evaluate", str(finished / "model"), data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] == "all"


def test_mistakes_are_named(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(finished / "model")]) == 3
    assert "name the images" in capsys.readouterr().err
    assert run(["evaluate", str(finished), "--test", "--split", "train"]) == 2
    assert run(["evaluate", str(finished / "nowhere")]) == 3
