"""The demonstration does all of its stages, resumes where it stopped, and does nothing twice."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cbml.bayes import MatchProbability, analyze_set, check_results
from cbml.data import ImageDataset, PackedDataset
from cbml.errors import BadData
from cbml.evaluation import evaluate
from cbml.models import Embedder
from cbml.runs import RunConfig, demonstrate, parse_overrides
from cbml.runs.demo import CalibrationCheck, View, reliability_of
from cbml.runs.queries import by_gain
from cbml.training import Callback, Interrupted, StepReport
from tests.bayes.cases import Set, crowded

TINY = "backbone=conv4 weights=none crop=32 dim=16 classes_per_batch=4 samples_per_class=4"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Twenty colors, five images of each."""
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    chance = np.random.default_rng(0)
    for label in range(20):
        folder = tmp_path / "images" / f"<b>{label}"
        folder.mkdir(parents=True)
        color = chance.integers(0, 200, 3)
        for number in range(5):
            pixels = (color + chance.integers(0, 50, (40, 40, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    words = [*TINY.split(), "steps=6", "validate_every=3", "checkpoint_every=2"]
    data = {"source": str(tmp_path / "images"), "validation": 0.4}  # four classes to calibrate on
    return RunConfig(data, **parse_overrides(words))


class Heard(Callback):
    """Keeps what was said; breaks off at a step."""

    def __init__(self, stop_at: int = 0) -> None:
        self.lines: list[str] = []
        self.steps: list[int] = []
        self.stop_at = stop_at

    def on_message(self, text: str) -> None:
        self.lines.append(text)

    def step(self, report: StepReport) -> None:
        self.steps.append(report.step)
        if report.step == self.stop_at:
            raise KeyboardInterrupt


class Galleries:
    """Stands where a gallery is made: this package must not know the other."""

    def __init__(self) -> None:
        self.made: list[tuple[Path, Path]] = []

    def __call__(self, model: Embedder, run: Path, folder: Path) -> None:
        assert not model.training
        self.made.append((run, folder))
        folder.mkdir(exist_ok=True)


def test_all_stages_once_and_then_the_kept_result(config: RunConfig, tmp_path: Path) -> None:
    galleries, heard = Galleries(), Heard()
    place = tmp_path / "a demo"
    found = demonstrate(place, make_gallery=galleries, config=config, callback=heard)
    assert [line[:6] for line in heard.lines if re.match(r"\d of 4", line)] == [
        f"{number} of 4" for number in (1, 2, 3, 4)
    ]
    assert (found.images, found.classes, found.reused) == (50, 10, False)
    assert {"recall@1", "recall@2", "recall@4", "recall@8", "map@r", "nmi"} <= set(found.after)
    assert f"{found.after['recall@1']:.1%}" in found.sentence
    assert found.reliability is not None
    page = (place / "report.html").read_text()
    assert found.sentence in page
    assert "http" not in page.replace("http-equiv", ""), "nothing from the network"
    assert "<b>" not in page, "names are text, not HTML"
    assert page.count("<table>") == 2
    assert f"cbml serve &#39;{place}/gallery&#39; --open" in page, "ready to be copied"
    assert f"gallery&#39; --id {found.example}<" in page
    assert json.loads((place / "run" / "run.json").read_text())["test_evaluations"] == 1
    again = demonstrate(place, make_gallery=galleries, config=config)
    assert again.reused
    assert len(galleries.made) == 1
    assert {**again.as_dict(), "reused": False} == json.loads(json.dumps(found.as_dict()))


def test_the_example_is_the_image_whose_results_gained_most() -> None:
    labels = np.array([0, 0, 1, 1, 2])
    dataset = np.eye(5, dtype=np.float32)
    worse, better = dataset.copy(), dataset.copy()
    worse[0] += 0.5 * dataset[2]  # nearest to an image of another class, later to its own
    better[0] += 0.5 * dataset[1]
    before, after = (evaluate(rows, labels, clustering=False) for rows in (worse, better))
    order = by_gain(before, after).tolist()
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2, 3], "the last has none of its class to find"


def test_an_interrupted_call_goes_on(config: RunConfig, tmp_path: Path) -> None:
    heard = Heard(stop_at=4)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        demonstrate(tmp_path / "demo", make_gallery=Galleries(), config=config, callback=heard)
    assert not (tmp_path / "demo" / "report.html").exists()
    later = Heard()
    found = demonstrate(tmp_path / "demo", make_gallery=Galleries(), config=config, callback=later)
    assert later.steps[0] > 2, "the first steps are not done again"
    assert later.steps[-1] == 6
    whole = demonstrate(tmp_path / "whole", make_gallery=Galleries(), config=config)
    assert found.after == whole.after


def test_a_damaged_result_is_made_again_and_other_settings_are_refused(
    config: RunConfig, tmp_path: Path
) -> None:
    galleries = Galleries()
    demonstrate(tmp_path / "demo", make_gallery=galleries, config=config)
    (tmp_path / "demo" / "demo.json").write_text("{")
    heard = Heard()
    assert not demonstrate(
        tmp_path / "demo", make_gallery=galleries, config=config, callback=heard
    ).reused
    assert heard.steps == [], "the finished training is used"
    other, heard = config.replace(training={"steps": 7}), Heard()
    with pytest.raises(BadData, match="a run with other settings; give another folder"):
        demonstrate(tmp_path / "demo", make_gallery=galleries, config=other, callback=heard)
    assert heard.lines == [], "before any work"


def seen(rows_and_labels: Set) -> tuple[View, PackedDataset]:
    rows, labels = rows_and_labels
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    sight = View(unit, evaluate(unit, labels), analyze_set(unit, labels))
    images = ImageDataset(
        tuple(map(Path, map(str, labels))), labels, tuple(map(str, np.unique(labels)))
    )
    return sight, PackedDataset(images, None, tuple(range(len(labels))), ())  # type: ignore[arg-type]


def test_probabilities_are_checked_on_classes_that_did_not_teach_them() -> None:
    learned = MatchProbability.fit(*crowded(0, classes=96))
    sight, dataset = seen(crowded(1, classes=96))
    labels = dataset.images.known_labels
    calibration = reliability_of(learned, sight, dataset)
    own = learned.for_gallery(sight.embeddings, labels)
    # Labels enough to teach: the halves of the classes that checked each other are what is shown.
    assert calibration == CalibrationCheck(own.check, own=True, results=own.depth)
    assert "halves" in calibration.sentence
    assert "held-out" not in calibration.sentence
    small, few = seen(crowded(2, classes=12, group=4))
    calibration = reliability_of(learned, small, few)
    labels = few.images.known_labels
    expected = check_results(
        learned.for_gallery(small.embeddings, labels), small.embeddings, labels
    )[10]
    assert calibration == CalibrationCheck(expected, own=False, results=10)
    assert "fitted to held-out classes" in calibration.sentence
