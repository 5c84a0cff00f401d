"""Tensorboard shows the numbers of metrics.jsonl, also of a run that was resumed."""

import shutil
import sys
from pathlib import Path

import pytest

from cbml.data import ImageDataset
from cbml.errors import MissingExtra
from cbml.training import Callback, Run, Settings, fit, read_metrics
from tests.training.small import batches, bayes_loss, embedder, make_images

STEPS = 5


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return make_images(tmp_path_factory.mktemp("images"))


def train(images: ImageDataset, folder: Path, *, steps: int = STEPS) -> None:
    fit(
        embedder(),
        bayes_loss(),
        batches(images),
        settings=Settings(steps=steps, checkpoint_every=2, validate_every=3),
        validate=lambda model: {"recall@1": 0.25},
        run=Run(folder, resume=(folder / "run.json").exists(), tensorboard=True),
        callback=Callback(),
    )


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = events.EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    names = reader.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in names}


def expected(folder: Path, name: str) -> list[tuple[int, float]]:
    lines = [line for line in read_metrics(folder) if name in line]
    return [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in lines]


def test_every_number_becomes_a_curve(images: ImageDataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(images, tmp_path)
    found = curves(tmp_path)
    for name in ("loss", "positive", "negative", "variance", "gradient_norm"):
        assert found[name] == expected(tmp_path, name)
        assert len(found[name]) == STEPS
    assert [step for step, _ in found["learning_rates/head"]] == [1, 2, 3, 4, 5]
    assert found["validation/recall@1"] == [(0, 0.25), (3, 0.25), (5, 0.25)]
    assert "seconds" not in found


def test_steps_that_are_done_again_are_shown_once(images: ImageDataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(images, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-000000005")
    train(images, tmp_path, steps=STEPS + 1)
    found = curves(tmp_path)["loss"]
    assert found == expected(tmp_path, "loss")
    assert [step for step, _ in found] == [1, 2, 3, 4, 5, 6]


def test_a_missing_package_is_named_before_the_first_step(
    images: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'cbml\[tensorboard\]'"):
        train(images, tmp_path / "run")
    assert not (tmp_path / "run").exists()
