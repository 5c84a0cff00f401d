"""The evidence runner runs, notes each unit once and never repeats one."""

import json
import sys
from pathlib import Path

import pytest

from tests.examples.test_emoji import SCRIPT
from tests.training.small import stated_splits

EXAMPLE = SCRIPT.parent / "without_labels.py"
SMALL = ["backbone=conv4", "dim=8", "crop=16", "steps=2", "batch_range=12", "clusters=6"]


@pytest.fixture
def labeled(tmp_path: Path) -> Path:
    """Two stated splits, so that there is something to test on."""
    return stated_splits(tmp_path, trained=3)


def test_units_are_done_once(
    labeled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import runpy

    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    records = tmp_path / "records.jsonl"
    words = [str(EXAMPLE), str(labeled), "--seeds", "0", "1", "--records", str(records)]
    words += ["--runs", str(tmp_path / "runs"), "--methods", "cbml", "cross-entropy on clusters"]
    for setting in SMALL:
        words += ["--set", setting]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    methods = ["before", "start", "cbml", "cross-entropy on clusters"]
    assert [line["method"] for line in lines] == methods * 2
    assert all(0 <= line["scores"]["recall@1"] <= 1 for line in lines)
    assert "| cbml | 2 | 2 |" in capsys.readouterr().out
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert len(records.read_text().splitlines()) == 8


def test_a_longer_unit_resumes_the_shorter_one(
    labeled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runpy

    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    records = tmp_path / "records.jsonl"
    words = [str(EXAMPLE), str(labeled), "--seeds", "0", "--records", str(records)]
    words += ["--runs", str(tmp_path / "runs"), "--methods", "cbml", "--epochs", "3", "1"]
    for setting in SMALL:
        if not setting.startswith("steps"):
            words += ["--set", setting]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["method"], line["epochs"]) for line in lines] == [
        ("before", 0),
        ("start", 0),
        ("cbml", 1),
        ("cbml", 3),
    ]
    assert lines[3]["steps"] == 3 * lines[2]["steps"]
    assert "resumed" in json.loads((tmp_path / "runs" / "cbml-0" / "run.json").read_text())
