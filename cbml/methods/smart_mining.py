"""Smart mining, reconstructed: triplets of neighbors among all images, as hard as is of use."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.data import ClassBalancedSampler, EpochBatches
from cbml.errors import BadData
from cbml.losses import check_number
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, Method, StepLoss, TrainingView

Indices = NDArray[np.int64]
Vectors = NDArray[np.float32]

_ANCHORS = 256  # rows of the table of similarities that are in memory at a time
_FASTEST = 2.0  # change of the window from one epoch to the next
_SMALLEST = 1e-6  # window


class SmartMining(Method):
    """Triplets mined before each epoch and a global loss, after Harwood et al. 2017.

    A reconstruction: neither the paper's text nor a program was at hand, and what is marked * is
    ours. Each epoch embeds all training images. Each anchor gets a negative, drawn evenly from the
    nearest share ω of the images of other classes, and a positive, drawn evenly from those that
    are farther than the negative, or from all where none is. With D² the squared distances of the
    embeddings, over the triplets of a batch:

        J_t = mean max(0, 1 - D²_an / (D²_ap + m))
        J_g = var(D²_ap / 4) + var(D²_an / 4) + λ max(0, mean(D²_ap / 4) - mean(D²_an / 4) + t)
        loss = J_t + γ J_g

    Before an epoch ω is multiplied by the share of the former one's triplets with J_t > 0, divided
    by `target`, at most by 2 and at least by ½*: it shrinks where too few triplets teach.

    Args:
        margin: m. 0.01*; "small" in the paper.
        global_weight: γ. 1*.
        mean_weight: λ. 0.8, from Kumar et al. 2016.
        threshold: t. 0.4, from the same.
        window: ω at first. 0.1*. With 1 all negatives are drawn alike.
        target: Share of triplets with a loss at which ω stays. 0.5*.
        seed: Random seed of the triplets.
    """

    window: Tensor  # ω
    seen: Tensor  # triplets of the running epoch
    active: Tensor  # those of them with a loss

    def __init__(
        self,
        *,
        margin: float = 0.01,
        global_weight: float = 1.0,
        mean_weight: float = 0.8,
        threshold: float = 0.4,
        window: float = 0.1,
        target: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.margin = check_number(margin, "margin", above=0.0)
        self.global_weight = check_number(global_weight, "global_weight", at_least=0.0)
        self.mean_weight = check_number(mean_weight, "mean_weight", at_least=0.0)
        self.threshold = check_number(threshold, "threshold", at_least=0.0)
        self.target = check_number(target, "target", above=0.0, at_most=1.0)
        self.seed = seed
        start = check_number(window, "window", above=0.0, at_most=1.0)
        self.register_buffer("window", torch.tensor(start, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("active", torch.zeros((), dtype=torch.int64))

    def check_images(self, class_sizes: NDArray[np.int64]) -> None:
        """Refuse images of which no triplet can be made."""
        if int((class_sizes > 0).sum()) < 2 or not (class_sizes > 1).any():
            raise BadData(
                "--method smart_mining: needs two classes, and a class of two images, to make "
                "triplets of"
            )

    def before_epoch(self, view: TrainingView) -> EpochPlan:
        """Triplets, three rows each: anchor, positive, negative."""
        share = self._adapt()
        readable = view.readable
        labels, vectors = view.batches.images.known_labels[readable], view.embed()
        anchors = np.flatnonzero(np.bincount(labels)[labels] > 1)
        self.check_images(np.bincount(labels))  # of those that can be read
        sampler = view.batches.sampler
        assert isinstance(sampler, ClassBalancedSampler)
        steps, rows = sampler.plan(view.epoch).shape
        unit = math.lcm(3, sampler.world_size)
        shape = (steps, max(rows // unit, 1) * unit)
        count, window = shape[0] * shape[1] // 3, float(self.window)

        def mine() -> Tensor:
            generator = np.random.default_rng([self.seed, view.epoch])
            rounds = -(-count // len(anchors))
            chosen = np.concatenate([generator.permutation(anchors) for _ in range(rounds)])
            return torch.from_numpy(
                mine_triplets(vectors, labels, chosen[:count], window, generator)
            )

        like = torch.zeros(count, 3, dtype=torch.int64)
        triplets = readable[view.distributed.from_main_process(mine, like).numpy()]
        shown = "" if share is None else f", {share:.0%} of the last ones had a loss"
        return EpochPlan(
            batches=EpochBatches(triplets.reshape(shape)),
            metadata={"window": window, "active": share},
            text=f"negatives from the nearest {window:.1%} of other classes{shown}",
        )

    def _adapt(self) -> float | None:
        """Move the window by the share of triplets with a loss, which is given back."""
        if not int(self.seen):
            return None
        share = int(self.active) / int(self.seen)
        factor = min(max(share / self.target, 1.0 / _FASTEST), _FASTEST)
        self.window.mul_(factor).clamp_(_SMALLEST, 1.0)
        self.seen.zero_()
        self.active.zero_()
        return share

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step.

        Args:
            outputs: Embeddings of the global batch, in threes.
        """
        near, far = _squares(outputs.embeddings, batch)
        if not len(near):
            return StepLoss(outputs.embeddings.sum() * 0.0)  # zero, with its graph
        terms = {
            "triplet": triplet_terms(near, far, self.margin).mean(),
            "global": global_loss(
                near / 4.0, far / 4.0, weight=self.mean_weight, threshold=self.threshold
            ),
        }
        return StepLoss(terms["triplet"] + self.global_weight * terms["global"], terms)

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        """Count the triplets with a loss."""
        del view
        near, far = _squares(outputs.embeddings, batch)
        self.seen += len(near)
        self.active += int((triplet_terms(near, far, self.margin) > 0.0).sum())


def triplet_terms(near: Tensor, far: Tensor, margin: float) -> Tensor:
    """max(0, 1 - d- / (d+ + m)) of each triplet. (T,)

    Args:
        near: d+, of anchor and positive. (T,)
        far: d-, of anchor and negative. (T,)
        margin: m.
    """
    return (1.0 - far / (near + margin)).relu()


def global_loss(near: Tensor, far: Tensor, *, weight: float, threshold: float) -> Tensor:
    """var d+ + var d- + λ max(0, mean d+ - mean d- + t), variances those of all there are.

    Args:
        near: d+. (T,)
        far: d-. (T,)
        weight: λ.
        threshold: t.
    """
    spread = near.var(correction=0) + far.var(correction=0)
    return spread + weight * (near.mean() - far.mean() + threshold).relu()


def mine_triplets(
    vectors: Vectors,
    labels: Indices,
    anchors: Indices,
    window: float,
    generator: np.random.Generator,
) -> Indices:
    """Each anchor with a positive and one of its nearest negatives. (A, 3)

    Args:
        vectors: Unit vectors of all images. (N, D)
        labels: Class of each. (N,)
        anchors: Images that have another of their class and one of another. (A,)
        window: Share of the negatives, the nearest, that are drawn from.
    """
    triplets = []
    for start in range(0, len(anchors), _ANCHORS):
        block = anchors[start : start + _ANCHORS]
        for anchor, near in zip(block.tolist(), vectors[block] @ vectors.T, strict=True):
            same = labels == labels[anchor]
            others = np.flatnonzero(~same)
            rank = int(generator.integers(max(1, math.ceil(window * len(others)))))
            negative = others[np.argpartition(-near[others], rank)[rank]]
            same[anchor] = False
            own = np.flatnonzero(same)
            farther = own[near[own] < near[negative]]
            positive = generator.choice(farther if len(farther) else own)
            triplets.append([anchor, positive, negative])
    return np.array(triplets, dtype=np.int64)


def _squares(rows: Tensor, batch: BatchInfo) -> tuple[Tensor, Tensor]:
    """Squared distances of anchors to positives and to negatives. (T,) each

    A row that stands in for an unreadable image may be of the wrong class: its triplet is left out.
    """
    anchor, positive, negative = (rows.float()[start::3] for start in range(3))
    label, of_positive, of_negative = (batch.labels[start::3] for start in range(3))
    valid = (label == of_positive) & (label != of_negative)
    near, far = ((anchor - other).square().sum(dim=1) for other in (positive, negative))
    return near[valid], far[valid]
