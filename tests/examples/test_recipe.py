"""The comparison of losses under the default recipe: trials choose, runs are done once."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.examples.test_emoji import SCRIPT
from tests.training.small import stated_splits

EXAMPLE = SCRIPT.parent / "recipe.py"
SMALL = ["backbone=conv4", "dim=8", "crop=16", "steps=2", "classes_per_batch=3", "validation=0.4"]


def test_rates_are_chosen_on_held_out_classes_and_runs_are_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    root = stated_splits(tmp_path, trained=5)
    words = [str(EXAMPLE), str(root), "--losses", "cbml", "margin", "--seeds", "0", "1"]
    words += ["--records", str(tmp_path), "--runs", str(tmp_path / "runs")]
    for setting in SMALL:
        words += ["--set", setting]
    monkeypatch.setattr(sys, "argv", words)
    script = runpy.run_path(str(EXAMPLE))
    monkeypatch.setitem(script["main"].__globals__, "TRIAL_STEPS", 1)
    script["main"]()
    records = tmp_path / "set.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["trial"] for line in lines] == [True] * 6 + [False] * 4
    for loss in ("cbml", "margin"):
        tried = {
            line["rate"]: max(line["scores"]["validation"].values())
            for line in lines
            if line["loss"] == loss and line["trial"]
        }
        assert len(tried) == 3
        assert all("test" not in line["scores"] for line in lines if line["trial"])
        chosen = {line["rate"] for line in lines if line["loss"] == loss and not line["trial"]}
        assert chosen == {max(tried, key=lambda rate: tried[rate])}
    assert "| margin |" in capsys.readouterr().out
    script["main"]()
    assert len(records.read_text().splitlines()) == 10


def test_the_table_compares_in_pairs() -> None:
    table = runpy.run_path(str(EXAMPLE))["table"]

    def line(loss: str, seed: int, recall: float) -> dict[str, object]:
        scores = {"test": {"recall@1": recall, "map@r": recall / 2}}
        return {
            "loss": loss,
            "seed": seed,
            "scores": scores,
            "config": {"optimizer": {"learning_rate": 2e-4}},
        }

    text = table(
        [line("cbml", 0, 0.5), line("cbml", 1, 0.6), line("margin", 0, 0.4), line("margin", 1, 0.5)]
    )
    # Both vary by ten points from seed to seed, and ours is ahead by just ten in each.
    assert "| margin | 0.0002 | 2 | 45.0 ± 63.5 | 10.0 ± 0.0 | 22.5 ± 31.8 | 5.0 ± 0.0 |" in text
