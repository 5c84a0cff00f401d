"""The demonstration does all of its stages, goes on where it stopped, and does nothing twice."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cbml.errors import BadData
from cbml.experiments.demo import demonstrate
from cbml.models import Embedder
from cbml.training import Interrupted, Listener, Recipe, StepReport, recipe_for, with_overrides

TINY = "backbone=conv4 weights=none crop=32 dim=16 classes_per_batch=4 pictures_per_class=4"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Twenty colours, five pictures of each."""
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    chance = np.random.default_rng(0)
    for label in range(20):
        folder = tmp_path / "pictures" / f"<b>{label}"
        folder.mkdir(parents=True)
        colour = chance.integers(0, 200, 3)
        for number in range(5):
            pixels = (colour + chance.integers(0, 50, (40, 40, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    words = [*TINY.split(), "steps=6", "validate_every=3", "checkpoint_every=2"]
    return with_overrides(recipe_for(str(tmp_path / "pictures")), words)


class Heard(Listener):
    """Keeps what was said; breaks off at a step."""

    def __init__(self, stop_at: int = 0) -> None:
        self.lines: list[str] = []
        self.steps: list[int] = []
        self.stop_at = stop_at

    def say(self, text: str) -> None:
        self.lines.append(text)

    def step(self, report: StepReport) -> None:
        self.steps.append(report.step)
        if report.step == self.stop_at:
            raise KeyboardInterrupt


class Galleries:
    """Stands where a gallery is made: this room must not know the other."""

    def __init__(self) -> None:
        self.made: list[tuple[Path, Path]] = []

    def __call__(self, model: Embedder, run: Path, folder: Path) -> None:
        assert not model.training
        self.made.append((run, folder))
        folder.mkdir(exist_ok=True)


def test_all_stages_once_and_then_the_kept_result(recipe: Recipe, tmp_path: Path) -> None:
    galleries, heard = Galleries(), Heard()
    found = demonstrate(tmp_path / "demo", make_gallery=galleries, recipe=recipe, listener=heard)
    assert [line[:6] for line in heard.lines if re.match(r"\d of 4", line)] == [
        f"{number} of 4" for number in (1, 2, 3, 4)
    ]
    assert (found.pictures, found.classes, found.reused) == (50, 10, False)
    assert {"recall@1", "recall@2", "recall@4", "recall@8", "map_at_r", "nmi"} <= set(found.after)
    assert f"{found.after['recall@1']:.1%}" in found.sentence
    assert found.reliability is not None
    page = (tmp_path / "demo" / "report.html").read_text()
    assert found.sentence in page
    assert "http" not in page.replace("http-equiv", ""), "nothing from the network"
    assert "<b>" not in page, "names are text, not HTML"
    assert page.count("<table>") == 2
    assert json.loads((tmp_path / "demo" / "run" / "run.json").read_text())["test_looks"] == 1
    again = demonstrate(tmp_path / "demo", make_gallery=galleries, recipe=recipe)
    assert again.reused
    assert len(galleries.made) == 1
    assert {**again.as_dict(), "reused": False} == json.loads(json.dumps(found.as_dict()))


def test_an_interrupted_call_goes_on(recipe: Recipe, tmp_path: Path) -> None:
    heard = Heard(stop_at=4)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        demonstrate(tmp_path / "demo", make_gallery=Galleries(), recipe=recipe, listener=heard)
    assert not (tmp_path / "demo" / "report.html").exists()
    later = Heard()
    found = demonstrate(tmp_path / "demo", make_gallery=Galleries(), recipe=recipe, listener=later)
    assert later.steps[0] > 2, "the first steps are not done again"
    assert later.steps[-1] == 6
    whole = demonstrate(tmp_path / "whole", make_gallery=Galleries(), recipe=recipe)
    assert found.after == whole.after


def test_a_damaged_result_is_made_again_and_other_settings_are_refused(
    recipe: Recipe, tmp_path: Path
) -> None:
    galleries = Galleries()
    demonstrate(tmp_path / "demo", make_gallery=galleries, recipe=recipe)
    (tmp_path / "demo" / "demo.json").write_text("{")
    heard = Heard()
    assert not demonstrate(
        tmp_path / "demo", make_gallery=galleries, recipe=recipe, listener=heard
    ).reused
    assert heard.steps == [], "the finished training is used"
    other = with_overrides(recipe, ["steps=7"])
    with pytest.raises(BadData, match="a run with other settings; give another folder"):
        demonstrate(tmp_path / "demo", make_gallery=galleries, recipe=other)
