"""A run over tiny images whose labels are hidden, with clusters renewed in each epoch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from cbml.data import Batches, ImageDataset, PackedDataset, TrainTransform
from cbml.losses import CBMLLoss, LinearRatio
from cbml.methods import PseudoLabels
from cbml.training import Callback, Distributed, Fitted, Run, Settings, build_batches, fit
from tests.training.small import CROP, embedder

CLUSTERS = 6
# 42 images in batches of 12 to 18: three or four steps in a pass, seven steps in two passes.
SETTINGS = Settings(steps=9, checkpoint_every=1, keep_checkpoints=9, learning_rate=1e-3)


def make_loss(options: Mapping[str, Any]) -> CBMLLoss:
    """CBML whose ratio lies where the estimate of the last clustering put it."""
    ratio = LinearRatio(negative_center=options.get("center", 0.5), negative_scale=0.2)
    return CBMLLoss(ratio=ratio, mining_margin=None)


def mean_similarity(rows: np.ndarray, labels: np.ndarray) -> dict[str, object]:
    """An estimate that depends on every number it is given."""
    centers = [rows[labels == label].mean(axis=0) for label in np.unique(labels)]
    return {"options": {"center": float(np.mean([c @ c for c in centers]))}}


def batches(
    images: ImageDataset, dataset: PackedDataset, distributed: Distributed, workers: int = 0
) -> Batches:
    return build_batches(
        ImageDataset(images.paths),
        transform=TrainTransform(crop=CROP),
        distributed=distributed,
        samples_per_class=2,
        batch_range=(12, 18),
        seed=3,
        source=dataset.packed,
        workers=workers,
        bad_limit=0.2,
    )


def run_small(
    images: ImageDataset,
    folder: Path | None,
    settings: Settings = SETTINGS,
    *,
    loss: nn.Module | None = None,
    cluster_by: str = "embedding",
    batch_norm: str = "trained",
    distributed: Distributed | None = None,
    callback: Callback | None = None,
    workers: int = 0,
) -> tuple[dict[str, Tensor], Batches, Fitted]:
    """Start a run or go on with it; gives its weights, and its batches with the last labels."""
    distributed = distributed or Distributed()
    model = embedder(batch_norm)
    model.preprocessing = model.preprocessing.with_crop(CROP)
    dataset = PackedDataset.of(ImageDataset(images.paths), CROP)
    method = PseudoLabels(
        loss or make_loss,
        clusters=CLUSTERS,
        cluster_by=cluster_by,
        estimate=mean_similarity if loss is None else None,
    )
    made = batches(images, dataset, distributed, workers)
    resume = folder is not None and (folder / "run.json").exists()
    fitted = fit(
        model,
        method,
        made,
        settings=settings,
        run=None if folder is None else Run(folder, resume=resume),
        distributed=distributed,
        callback=callback or Callback(),
    )
    return model.state_dict(), made, fitted
