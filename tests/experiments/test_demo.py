"""The demonstration does all of its stages, goes on where it stopped, and does nothing twice."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cbml.bayes import MatchProbability
from cbml.bayes.analysis import analyze_set, check_results
from cbml.data import ImageSet
from cbml.errors import BadData
from cbml.evaluation import evaluate
from cbml.experiments.demo import demonstrate, reliability_of
from cbml.experiments.demo_promises import Promises
from cbml.experiments.demo_report import Sight, by_gain
from cbml.models import Embedder
from cbml.training import Interrupted, Listener, Recipe, StepReport, recipe_for, with_overrides
from cbml.training.assembly import Shelf
from tests.bayes.cases import Set, crowded

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
    place = tmp_path / "a demo"
    found = demonstrate(place, make_gallery=galleries, recipe=recipe, listener=heard)
    assert [line[:6] for line in heard.lines if re.match(r"\d of 4", line)] == [
        f"{number} of 4" for number in (1, 2, 3, 4)
    ]
    assert (found.pictures, found.classes, found.reused) == (50, 10, False)
    assert {"recall@1", "recall@2", "recall@4", "recall@8", "map_at_r", "nmi"} <= set(found.after)
    assert f"{found.after['recall@1']:.1%}" in found.sentence
    assert found.reliability is not None
    page = (place / "report.html").read_text()
    assert found.sentence in page
    assert "http" not in page.replace("http-equiv", ""), "nothing from the network"
    assert "<b>" not in page, "names are text, not HTML"
    assert page.count("<table>") == 2
    assert f"cbml serve &#x27;{place}/gallery&#x27; --open" in page, "ready to be copied"
    assert f"gallery&#x27; --id {found.example}\n" in page
    assert json.loads((place / "run" / "run.json").read_text())["test_looks"] == 1
    again = demonstrate(place, make_gallery=galleries, recipe=recipe)
    assert again.reused
    assert len(galleries.made) == 1
    assert {**again.as_dict(), "reused": False} == json.loads(json.dumps(found.as_dict()))


def test_the_example_is_the_picture_whose_results_gained_most() -> None:
    labels = np.array([0, 0, 1, 1, 2])
    shelf = np.eye(5, dtype=np.float32)
    worse, better = shelf.copy(), shelf.copy()
    worse[0] += 0.5 * shelf[2]  # nearest to a picture of another class, later to its own
    better[0] += 0.5 * shelf[1]
    before, after = (
        Sight(rows, evaluate(rows, labels, clustering=False), analyze_set(rows, labels))
        for rows in (worse, better)
    )
    order = by_gain(before, after).tolist()
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2, 3], "the last has none of its class to find"


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
    other, heard = with_overrides(recipe, ["steps=7"]), Heard()
    with pytest.raises(BadData, match="a run with other settings; give another folder"):
        demonstrate(tmp_path / "demo", make_gallery=galleries, recipe=other, listener=heard)
    assert heard.lines == [], "before any work"


def seen(rows_and_labels: Set) -> tuple[Sight, Shelf]:
    rows, labels = rows_and_labels
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    sight = Sight(unit, evaluate(unit, labels), analyze_set(unit, labels))
    images = ImageSet(
        tuple(map(Path, map(str, labels))), labels, tuple(map(str, np.unique(labels)))
    )
    return sight, Shelf(images, None, tuple(range(len(labels))), ())  # type: ignore[arg-type]


def test_probabilities_are_checked_on_classes_that_did_not_teach_them() -> None:
    learned = MatchProbability.fit(*crowded(0, classes=96))
    sight, shelf = seen(crowded(1, classes=96))
    labels = shelf.images.known_labels
    promises = reliability_of(learned, sight, shelf)
    own = learned.for_gallery(sight.rows, labels)
    # Labels enough to teach: the halves of the classes that checked each other are what is shown.
    assert promises == Promises(own.check, own=True, results=own.depth)
    assert "halves" in promises.sentence
    assert "held-out" not in promises.sentence
    small, few = seen(crowded(2, classes=12, group=4))
    promises = reliability_of(learned, small, few)
    labels = few.images.known_labels
    expected = check_results(learned.for_gallery(small.rows, labels), small.rows, labels)[10]
    assert promises == Promises(expected, own=False, results=10)
    assert "learned on held-out classes" in promises.sentence
