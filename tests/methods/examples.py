"""The worked batches of the fact sheets, and outputs made of them."""

import math

import torch
from torch import Tensor

from cbml.data import ImageDataset, TrainTransform
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import (
    BatchInfo,
    Distributed,
    Method,
    StepLoss,
    TrainingView,
    build_batches,
)
from tests.training.small import CROP

#: Angles in the plane of four images, as three learners see them.
ANGLES = ((0, 40, 65, 115), (0, 10, 90, 150), (0, 70, 30, 100))
LABELS = torch.tensor([0, 0, 1, 1])


def circle(angles: tuple[int, ...]) -> Tensor:
    """Unit vectors in the plane."""
    turned = [math.radians(angle) for angle in angles]
    return torch.tensor([[math.cos(t), math.sin(t)] for t in turned], dtype=torch.float64)


def loss_of(method: Method, parts: dict[str, Tensor], labels: Tensor = LABELS) -> StepLoss:
    """The loss of given parts; the embedding is their concatenation."""
    outputs = Outputs(torch.cat([*parts.values()], dim=1), parts)
    found: StepLoss = method(outputs, BatchInfo(labels, torch.arange(len(labels))))
    return found


def labeled_view(
    images: ImageDataset, model: Embedder, *, epoch: int = 0, step: int = 0, steps: int = 100
) -> TrainingView:
    """What a method sees before an epoch over tiny images, in batches of 6 classes times 2."""
    model.preprocessing = model.preprocessing.with_crop(CROP)
    batches = build_batches(images, transform=TrainTransform(crop=CROP), samples_per_class=2)
    batches.sampler.epoch = epoch
    return TrainingView(model, batches, Distributed(), step=step, steps=steps)
