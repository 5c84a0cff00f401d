"""A set of tiny images, a small model, and a run over them that takes a second."""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor, nn

from cbml.data import Batches, ClassBalancedSampler, ImageDataset, TrainTransform
from cbml.losses import CBMLLoss, LinearRatio
from cbml.models import Embedder
from cbml.training import Callback, Distributed, Fitted, Run, Settings, fit

CLASSES, IMAGES, CROP = 6, 7, 16


def make_images(folder: Path) -> ImageDataset:
    """Colored noise, one color for each class."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    paths, labels = [], []
    for label in range(CLASSES):
        color = chance.integers(0, 200, 3)
        for number in range(IMAGES):
            path = folder / f"{label}-{number}.png"
            noise = chance.integers(0, 56, (20, 24, 3))
            Image.fromarray((color + noise).astype(np.uint8)).save(path)
            paths.append(path)
            labels.append(label)
    return ImageDataset(tuple(paths), np.array(labels), tuple(map(str, range(CLASSES))))


def stated_splits(root: Path, *, trained: int) -> Path:
    """The same in folders named train and test, the first so many classes to train on."""
    for path in make_images(root / "flat").paths:
        label = path.name.partition("-")[0]
        target = root / "set" / ("train" if int(label) < trained else "test") / label / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return root / "set"


def class_folders(root: Path) -> Path:
    """The same and as many again, in a folder for each class; a run cuts its splits from them."""
    for path in make_images(root / "flat").paths:
        target = root / "classes" / path.name.partition("-")[0] / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    for number in range(CLASSES, 2 * CLASSES):  # so that three are left to train on
        source = root / "classes" / str(number - CLASSES)
        for path in sorted(source.iterdir())[:4]:
            target = root / "classes" / str(number) / path.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes() + b"\0")
    return root / "classes"


def embedder(batch_norm: str = "trained") -> Embedder:
    return Embedder("conv4", dim=8, batch_norm=batch_norm, seed=1)


def bayes_loss() -> CBMLLoss:
    return CBMLLoss(ratio=LinearRatio(negative_center=0.5, negative_scale=0.2))


def batches(
    images: ImageDataset, *, workers: int = 0, distributed: Distributed | None = None
) -> Batches:
    distributed = distributed or Distributed()
    sampler = ClassBalancedSampler(
        images.known_labels,
        classes_per_batch=4,
        samples_per_class=4,
        seed=3,
        rank=distributed.rank,
        world_size=distributed.size,
    )
    return Batches(images, sampler, transform=TrainTransform(crop=CROP), workers=workers)


def run_small(
    images: ImageDataset,
    folder: Path | None,
    settings: Settings,
    *,
    resume: bool = False,
    workers: int = 0,
    loss: nn.Module | None = None,
    callback: Callback | None = None,
) -> tuple[dict[str, Tensor], Fitted]:
    """The weights after a run, and what became of it."""
    model = embedder()
    fitted = fit(
        model,
        loss or bayes_loss(),
        batches(images, workers=workers),
        settings=settings,
        run=None if folder is None else Run(folder, resume=resume),
        callback=callback or Callback(),
    )
    return model.state_dict(), fitted
