"""A run whose labels change resumes to the bit, wherever it was stopped."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cbml.data import ImageDataset
from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.training import Callback, Settings, read_metrics
from tests.methods.unlabeled import CLUSTERS, SETTINGS, run_small

STEPS = int(SETTINGS.steps or 0)


@pytest.fixture(scope="module")
def unbroken(
    images: ImageDataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Tensor], np.ndarray]:
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    weights, batches, _ = run_small(images, folder)
    return folder, weights, batches.images.known_labels


def cut(run: Path, copy: Path, step: int) -> Path:
    """A copy of a run as a kill after `step` would have left it."""
    shutil.copytree(run, copy)
    for checkpoint in (copy / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    shutil.rmtree(copy / "model", ignore_errors=True)  # written at the end
    return copy


def lines(run: Path) -> list[dict[str, object]]:
    return [
        {name: value for name, value in line.items() if name != "seconds"}
        for line in read_metrics(run)
    ]


def refreshes(run: Path) -> list[dict[str, object]]:
    return [line["plan"] for line in read_metrics(run) if "plan" in line]


def different(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(first[name], second[name])]


def test_the_run_is_one_in_which_labels_change(
    unbroken: tuple[Path, dict[str, Tensor], np.ndarray],
) -> None:
    found = refreshes(unbroken[0])
    assert len(found) >= 3
    assert found[0]["moved"] is None
    assert any(0.0 < facts["moved"] < 1.0 for facts in found[1:])
    centers = [facts["options"]["center"] for facts in found]
    assert len(set(centers)) == len(centers), "the loss's constants follow the clusters"
    sizes = {line["epoch"]: line for line in read_metrics(unbroken[0]) if "loss" in line}
    assert len(sizes) >= 3, "three passes"


@pytest.mark.parametrize("step", range(STEPS))
def test_resume_at_every_step_is_equal_to_the_bit(
    images: ImageDataset,
    unbroken: tuple[Path, dict[str, Tensor], np.ndarray],
    tmp_path: Path,
    step: int,
) -> None:
    run = cut(unbroken[0], tmp_path / "run", step)
    weights, batches, fitted = run_small(images, run, workers=2 if step % 2 else 0)
    assert fitted.steps == STEPS
    assert not different(weights, unbroken[1])
    assert batches.images.known_labels.tolist() == unbroken[2].tolist()
    assert lines(run) == lines(unbroken[0])


def test_class_vectors_and_whitened_features_resume_to_the_bit(
    images: ImageDataset, tmp_path: Path
) -> None:
    def loss() -> torch.nn.Module:
        return LOSSES["normalized_softmax"](num_classes=CLUSTERS, embedding_size=8)

    first, second = loss(), loss()
    weights, _, _ = run_small(images, tmp_path / "a", loss=first, cluster_by="features")
    run = cut(tmp_path / "a", tmp_path / "b", 5)
    again, _, _ = run_small(images, run, loss=second, cluster_by="features")
    assert not different(weights, again)
    assert not different(first.state_dict(), second.state_dict())


def test_labels_are_refused_for_other_images(
    images: ImageDataset, unbroken: tuple[Path, dict[str, Tensor], np.ndarray], tmp_path: Path
) -> None:
    run = cut(unbroken[0], tmp_path / "run", 5)
    with pytest.raises(BadData, match="42 given for 40 images"):
        run_small(images.subset(range(40)), run)
    order = [1, 0, *range(2, len(images))]
    with pytest.raises(BadData, match="other names than those of the run"):
        run_small(images.subset(order), run)


def test_epochs_are_known_before_the_labels(images: ImageDataset) -> None:
    heard: list[int] = []

    class Counting(Callback):
        def begin(self, step: int, steps: int) -> None:
            heard.append(steps)

    settings = Settings(steps=None, epochs=3, checkpoint_every=0)
    _, batches, fitted = run_small(images, None, settings, callback=Counting())
    assert heard == [fitted.steps]
    assert (batches.sampler.epoch, batches.sampler.step) == (2, len(batches.sampler))
