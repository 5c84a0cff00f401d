"""Many files and many classes: nothing grows faster than they do."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from cbml.data import ClassBalancedSampler, ImageDataset, datasets
from cbml.losses import LOSSES


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_folder_of_many_files_is_listed_whole(tmp_path: Path, count: int) -> None:
    classes = count // 50
    for label in range(classes):
        (tmp_path / f"{label}").mkdir()
        for number in range(50):
            (tmp_path / f"{label}" / f"{number}.jpg").write_bytes(b"%d %d" % (label, number))
    start = time.process_time()
    splits = datasets.folder(tmp_path)
    listed = sum(len(images) for images in splits.parts().values())
    assert listed == count
    assert time.process_time() - start < 5 + count / 2_000
    assert {os.path.basename(path) for path in splits.train.paths} == {
        f"{n}.jpg" for n in range(50)
    }


@pytest.mark.parametrize("classes", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_as_many_classes_as_images_in_pairs(classes: int) -> None:
    labels = np.repeat(np.arange(classes), 2)
    images = ImageDataset(
        tuple(Path(f"{n}.jpg") for n in range(2 * classes)), labels, tuple(map(str, range(classes)))
    )
    assert (images.class_sizes() == 2).all()
    sampler = ClassBalancedSampler(labels, classes_per_batch=40, samples_per_class=2, seed=1)
    seen: set[int] = set()
    for step in range(20):
        batch = labels[np.asarray(sampler.share(0, step))]
        assert len(set(batch.tolist())) == 40
        assert not seen & set(batch.tolist()), "no class comes twice in one epoch"
        seen |= set(batch.tolist())
    loss = LOSSES["proxy_anchor"](num_classes=classes, embedding_size=4, seed=0)
    rows = torch.nn.functional.normalize(torch.randn(80, 4), dim=1).requires_grad_()
    value = loss(rows, torch.from_numpy(batch))
    value.backward()
    assert bool(torch.isfinite(value))
    assert rows.grad is not None
    assert bool(torch.isfinite(rows.grad).all())
