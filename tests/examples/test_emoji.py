"""The example runs, with less of everything, on the real images."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import cbml
from cbml import Embedder, ImageDataset, datasets

SCRIPT = Path(cbml.__file__).parent.parent / "examples" / "emoji.py"


def first_classes(images: ImageDataset, count: int) -> ImageDataset:
    kept = np.flatnonzero(images.labels < np.unique(images.labels)[count])
    return images.subset(kept)


def test_the_example_learns_and_measures(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(SCRIPT))
    splits = datasets.emoji(validation=0)
    model = Embedder("efficientnet_lite0", dim=16)
    model.preprocessing = model.preprocessing.with_crop(32)
    seen, unseen = first_classes(splits.train, 40), first_classes(splits.test, 10)
    head = model.head.weight.detach().clone()
    before = example["recall_at_1"](model, unseen)
    example["train"](model, seen, steps=2, crop=32, seed=0)
    assert 0.0 <= before <= 1.0
    assert "L_P" in capsys.readouterr().out
    assert not (model.head.weight == head).all(), "the head has learned"
    assert not model.training
