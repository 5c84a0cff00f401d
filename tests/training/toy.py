"""A method that uses every hook: two heads, networks of its own, a memory, a teacher, a policy."""

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.data import EpochBatches
from cbml.models import Embedder, Head
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, Method, ParameterGroup, StepLoss, TrainingView
from tests.training.small import CROP, bayes_loss

DIM = 8


class Toy(Method):
    parts = ("features", "raw:deep")

    def __init__(self) -> None:
        super().__init__(bayes_loss())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            self.regressor = nn.Linear(64, 4)
            self.policy = nn.Parameter(torch.zeros(2))
        self.register_buffer("memory", torch.zeros(64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.own = torch.optim.SGD([self.policy], lr=0.1, momentum=0.9)
        self.called: list[str] = []
        self.poison_at: int | None = None

    def heads(self, dim: int) -> tuple[Head, ...]:
        half = dim // 2
        return (
            Head(name="shallow", dim=half, tap="7", weight=0.5),
            Head(name="deep", dim=dim - half, hidden=(6,), weight=2.0),
            Head(name="extra", dim=3, weight=0.0),
        )

    def attach(self, model: Embedder) -> None:
        super().attach(model)
        self.teacher = copy.deepcopy(model).requires_grad_(False).eval()

    def parameter_groups(self) -> list[ParameterGroup]:
        own = [*self.regressor.parameters()]
        return [ParameterGroup("regressor", own, factor=3.0, weight_decay=0.0, first_step=2)]

    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        return {"policy": self.own}

    def start(self, view: TrainingView) -> None:
        self.called.append("start")

    def before_epoch(self, view: TrainingView) -> EpochPlan | None:
        """Every other epoch two streams with labels of their own, and the backbone rests."""
        self.called.append(f"epoch {view.epoch} at {view.step}")
        if view.epoch % 2 == 0:
            return None
        images = np.random.default_rng([7, view.epoch]).permutation(len(view.batches.images))
        indices = images[:32].reshape(4, 8)
        streams = np.array([0, 1, 0, 1])
        labels = view.batches.images.known_labels[indices] // (1 + streams[:, None])
        return EpochPlan(
            batches=EpochBatches(indices, labels, streams),
            rest=frozenset({"backbone"}),
            metadata={"streams": 2},
            text="two streams",
        )

    def teach(self, images: Tensor) -> Mapping[str, Tensor]:
        return {"teacher": self.teacher(images)}

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        parts = outputs.parts
        assert len(batch.indices) == len(outputs)
        self.memory.mul_(0.5).add_(parts["features"].detach().mean(dim=0), alpha=0.5)
        self.seen += 1
        losses = [bayes_loss()(parts[name], batch.labels) for name in ("shallow", "deep")]
        regression = functional.mse_loss(self.regressor(parts["features"]), parts["raw:deep"])
        agreement = (outputs.embeddings - parts["teacher"]).square().sum(dim=1).mean()
        extra = (parts["extra"] @ parts["extra"].T).square().mean()
        weight = self.model.head["deep"][-1].weight.square().sum()  # across the cut
        total = losses[batch.stream] + losses[1] + regression + agreement + extra + 0.1 * weight
        if batch.step == self.poison_at:
            total = total * torch.nan
        return StepLoss(total, {"regression": regression})

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        self.called.append(f"step {view.step}")
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), view.model.parameters(), strict=True):
                old.lerp_(new, 0.1)
        self.policy.grad = outputs.embeddings.mean() * torch.ones(2)
        self.own.step()

    def after_validation(self, view: TrainingView, scores: Mapping[str, float]) -> None:
        self.called.append(f"validation {view.step}")
        with torch.no_grad():
            self.policy.add_(scores["recall@1"])


def toy_model(method: Method, batch_norm: str = "frozen_statistics") -> Embedder:
    model = Embedder("conv4", heads=method.heads(DIM), batch_norm=batch_norm, seed=1)
    model.preprocessing = model.preprocessing.with_crop(CROP)
    return model
