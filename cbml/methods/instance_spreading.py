"""ISIF: two views of an image are alike, and no view is any other image."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cbml.data import EpochBatches
from cbml.index import Index
from cbml.losses import check_number
from cbml.methods.unlabeled import HeadStart, Unlabeled, image_features
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, StepLoss, TrainingView

_NOTHING = -1e30  # instead of minus infinity, whose gradients are NaN where nothing else is left


class InstanceSpreading(Unlabeled):
    """Invariant and spreading instance features (Ye, Zhang, Yuen and Chang, CVPR 2019).

    Rows are views of images, two of each; sg stops the gradient:

        P_ij = exp(x_i·sg(x_j) / T) / sum_{k != i} exp(x_i·sg(x_k) / T)
        loss = -mean_i { log P_i,pos(i) + sum_{j of other images} log(1 - P_ij) }

    Where a batch holds more than two views of an image, log P is averaged over the others. With
    `neighbor_probability`, the further views of an image are so often those of its nearest
    neighbor by the cosine of pooled features, found again before each epoch.

    Args:
        temperature: T. 0.1 in the authors' program.
        neighbor_probability: 0.5 in the authors' program on CUB; 0 on Cars and SOP, and here.
        detach: Whether sg stops the gradient, as the authors' program does.
        head_start: "random" or "whitened", how the linear layer starts.
        seed: Random seed of the choice between image and neighbor.
    """

    smallest_batch = (2, 2)

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        neighbor_probability: float = 0.0,
        detach: bool = True,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.neighbor_probability = check_number(
            neighbor_probability, "neighbor_probability", at_least=0.0, at_most=1.0
        )
        self.detach, self.seed = detach, seed

    def before_epoch(self, view: TrainingView) -> EpochPlan | None:
        """Batches in which neighbors take the places of some second views."""
        if not self.neighbor_probability:
            return None
        planned = view.batches.sampler.plan(view.epoch)  # type: ignore[attr-defined]
        nearest = np.arange(len(view.batches.images))
        nearest[view.readable] = view.readable[self._nearest(view)]
        chance = np.random.default_rng([self.seed, view.epoch]).random(planned.shape)
        second = np.zeros(planned.shape, dtype=np.bool_)
        second[:, 1:] = planned[:, 1:] == planned[:, :-1]  # views of an image stand together
        shown = np.where(second & (chance < self.neighbor_probability), nearest[planned], planned)
        return EpochPlan(batches=EpochBatches(shown, labels=planned))

    def _nearest(self, view: TrainingView) -> NDArray[np.int64]:
        """The nearest other readable image of each, of the main process."""
        features = image_features(view.model, view.embed)

        def find() -> Tensor:
            unit = functional.normalize(torch.from_numpy(features), dim=1).numpy()
            index = Index(unit.shape[1])
            index.add(unit)
            found = index.search(unit, 2).ids  # (N, 2), mostly itself first
            own = np.arange(len(unit))
            return torch.from_numpy(np.where(found[:, 0] == own, found[:, 1], found[:, 0]))

        like = torch.zeros(len(features), dtype=torch.int64)
        return view.distributed.from_main_process(find, like).numpy()

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step, with its two terms."""
        x, labels = outputs.embeddings.float(), batch.labels
        logits = x @ (x.detach() if self.detach else x).T / self.temperature
        itself = torch.eye(len(x), dtype=torch.bool, device=x.device)
        logits = logits.masked_fill(itself, _NOTHING)  # (B, B)
        same = labels[:, None] == labels[None, :]
        positives = same & ~itself
        log_odds = logits - logits.logsumexp(dim=1, keepdim=True)  # log P
        found = (log_odds * positives).sum(dim=1) / positives.sum(dim=1).clamp(min=1)
        others = torch.where(same, 0.0, log_complement(logits)).sum(dim=1)
        terms = {"invariance": -found.mean(), "spreading": -others.mean()}
        return StepLoss(terms["invariance"] + terms["spreading"], terms)


def log_complement(logits: Tensor) -> Tensor:
    """log(1 - softmax), exact also where one entry of a row has nearly all of it. (B, B)"""
    everything = logits.logsumexp(dim=1, keepdim=True)
    largest = functional.one_hot(logits.argmax(dim=1), logits.shape[1]).bool()
    rest = logits.masked_fill(largest, _NOTHING).logsumexp(dim=1, keepdim=True)
    # All but the largest are at most one half, where 1 - P loses no digits.
    odds = (logits - everything).exp().masked_fill(largest, 0.0)
    return torch.where(largest, rest - everything, torch.log1p(-odds))
