"""A run over tiny pictures whose labels are hidden, with clusters renewed in each pass."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from cbml.data import Batches, ClassBalancedSampler, ImageSet, TrainTransform
from cbml.losses import CBMLLoss, LinearRatio
from cbml.pseudo import Refresh, StagedLoss
from cbml.training import Fitted, Listener, Run, Settings, Team, fit
from cbml.training.assembly import Shelf
from tests.training.small import CROP, embedder

CLUSTERS = 6
# 42 pictures in batches of 12 to 18: three or four steps in a pass, seven steps in two passes.
SETTINGS = Settings(steps=9, checkpoint_every=1, keep_checkpoints=9, learning_rate=1e-3)


def staged_loss() -> StagedLoss:
    """CBML whose ratio lies where the estimate of the last clustering put it."""
    return StagedLoss(
        lambda options: CBMLLoss(
            ratio=LinearRatio(negative_center=options.get("center", 0.5), negative_scale=0.2),
            mining_margin=None,
        )
    )


def mean_similarity(rows: np.ndarray, labels: np.ndarray) -> dict[str, object]:
    """An estimate that depends on every number it is given."""
    centers = [rows[labels == label].mean(axis=0) for label in np.unique(labels)]
    return {"options": {"center": float(np.mean([c @ c for c in centers]))}}


def batches(images: ImageSet, shelf: Shelf, team: Team, workers: int = 0) -> Batches:
    each = np.arange(len(images))
    sampler = ClassBalancedSampler(
        each,
        pictures_per_class=2,
        batch_range=(12, 18),
        guessed=True,
        seed=3,
        rank=team.rank,
        world_size=team.size,
    )
    return Batches(
        ImageSet(images.paths, each, tuple(map(str, each))),
        sampler,
        transform=TrainTransform(crop=CROP),
        source=shelf.packed,
        workers=workers,
        bad_limit=0.2,
    )


def run_small(
    images: ImageSet,
    folder: Path | None,
    settings: Settings = SETTINGS,
    *,
    loss: nn.Module | None = None,
    cluster_by: str = "embedding",
    batch_norm: str = "trained",
    team: Team | None = None,
    listener: Listener | None = None,
    workers: int = 0,
) -> tuple[dict[str, Tensor], Batches, Fitted]:
    """Start a run or go on with it; gives its weights, and its batches with the last labels."""
    team = team or Team()
    model = embedder(batch_norm)
    model.preprocessing = model.preprocessing.with_crop(CROP)
    shelf = Shelf.of(ImageSet(images.paths), CROP)
    loss = loss or staged_loss()
    refresh = Refresh(
        shelf=shelf,
        clusters=CLUSTERS,
        every=1,
        cluster_by=cluster_by,
        loss=loss,
        estimate=mean_similarity if isinstance(loss, StagedLoss) else None,
        team=team,
    )
    made = batches(images, shelf, team, workers)
    resume = folder is not None and (folder / "run.json").exists()
    fitted = fit(
        model,
        loss,
        made,
        settings=settings,
        relabel=refresh,
        run=None if folder is None else Run(folder, resume=resume),
        team=team,
        listener=listener or Listener(),
    )
    return model.state_dict(), made, fitted
