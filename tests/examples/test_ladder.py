"""The ladder of difficulty: sets that are made, runs that are done once, and the table of pairs."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

from cbml.runs import RunConfig, load_splits
from tests.examples.test_emoji import SCRIPT
from tests.training.small import stated_splits

EXAMPLE = SCRIPT.parent / "ladder.py"
SMALL = ["backbone=conv4", "weights=none", "dim=8", "crop=16", "validation=0.4"]
BUDGET = ("steps=2", "validate_every=1", "classes_per_batch=3", "samples_per_class=2")


def test_every_rung_is_run_once_by_both_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    root = stated_splits(tmp_path, trained=5)
    records = tmp_path / "ladder.jsonl"
    words = [str(EXAMPLE), "--seeds", "0", "--only", "small"]
    words += ["--records", str(records), "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", words)
    script = runpy.run_path(str(EXAMPLE))
    names = script["main"].__globals__
    monkeypatch.setitem(names, "BUDGET", BUDGET)
    sets = {"small": [str(root), *SMALL], "another": ["nowhere"]}
    monkeypatch.setitem(names, "rungs", lambda *_: sets)
    script["main"]()
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["rung"], line["loss"]) for line in lines] == [
        ("small", "cbml"),
        ("small", "multi_similarity"),
    ]
    for line in lines:
        assert set(line["scores"]) == {"start", "kept", "last"}
        assert line["config"]["data"]["source"] == "set"  # not where it lies
    assert "| small |" in capsys.readouterr().out
    script["main"]()
    assert len(records.read_text().splitlines()) == 2
    assert not list((tmp_path / "runs").glob("small*"))


def test_the_table_compares_seed_by_seed() -> None:
    printed = runpy.run_path(str(EXAMPLE))["printed"]

    def line(loss: str, seed: int, kept: float) -> dict[str, object]:
        scores = {
            when: {"recall@1": value, "map@r": value / 2}
            for when, value in (("start", 0.1), ("kept", kept))
        }
        return {"rung": "set", "loss": loss, "seed": seed, "scores": scores}

    lines = [
        line("cbml", 0, 0.5),
        line("multi_similarity", 0, 0.4),
        line("cbml", 1, 0.3),
        line("multi_similarity", 1, 0.4),
        line("cbml", 2, 0.9),  # without a partner
    ]
    row = printed(lines).splitlines()[-1]
    assert row == "| set | 10.0/5.0 | 40.0/20.0 | 40.0/20.0 | 10.0/5.0, -10.0/-5.0 |"


def test_images_are_grayed_and_blurred(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for part in ("train", "test"):
        for label in range(2):
            folder = root / part / f"{part}{label}"
            folder.mkdir(parents=True)
            for number in range(2):
                green = 60 if part == "train" else 120
                image = Image.new("RGB", (48, 48), (200, green + 20 * number, 40 * label))
                image.paste((0, 0, 0), (0, 0, 24, 48))
                image.save(folder / f"{number}.png")
    splits = load_splits(RunConfig({"source": str(root), "validation": 0.0}))
    changed = runpy.run_path(str(EXAMPLE))["changed"]
    tables = {kind: changed(splits, tmp_path, kind) for kind in ("gray", "blurred")}
    for kind, table in tables.items():
        again = load_splits(RunConfig({"source": str(table), "validation": 0.0}))
        assert len(again.train) == 4
        assert again.test is not None
        assert len(again.test) == 4
        with Image.open(again.train.paths[0]) as image:
            assert image.mode == ("L" if kind == "gray" else "RGB")
            shades = {pixel for _, pixel in image.convert("L").getcolors() or []}
            assert len(shades) == 2 if kind == "gray" else len(shades) > 2
