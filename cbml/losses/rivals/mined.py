"""Losses of pytorch-metric-learning, each with the miner of its paper."""

from typing import Literal

import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import (
    CircleLoss,
    FastAPLoss,
    MultiSimilarityLoss,
    TripletMarginLoss,
)
from pytorch_metric_learning.miners import (
    BatchEasyHardMiner,
    MultiSimilarityMiner,
    TripletMarginMiner,
)
from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_triplets
from torch import Tensor
from torch.nn import functional

from cbml.losses.rivals.rival import Batch, Rival

__all__ = [
    "Circle",
    "FastAP",
    "MultiSimilarity",
    "TripletEasyPositive",
    "TripletSemihard",
    "masked_pair_value",
    "pml_arguments",
]


class TripletSemihard(Rival):
    """Triplets whose negative is farther than the positive, but not by the margin (FaceNet).

    Schroff et al. 2015. With D_ij² the squared distance of unit vectors, over all triplets of the
    batch with 0 < D_in² - D_ip² < m:

        loss = mean (D_ip² - D_in² + m)

    Args:
        margin: m. 0.2, from the paper.
    """

    def __init__(self, *, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = margin
        distance = LpDistance(normalize_embeddings=False, power=2)
        self._miner = TripletMarginMiner(
            margin=margin, type_of_triplets="semihard", distance=distance
        )
        self._loss = TripletMarginLoss(margin=margin, distance=distance)

    def _value(self, batch: Batch) -> Tensor:
        indices = _mined(self._miner, batch)
        value: Tensor = self._loss(*pml_arguments(batch, indices))
        return value


class TripletEasyPositive(Rival):
    """The most similar positive against one hard negative: EPSHN and EPHN (Xuan et al. 2020).

    With e the easiest positive of anchor i, and n its hardest negative, or the hardest among
    those less similar than e (semi-hard); over the anchors that have both:

        loss = mean_i -log(exp(s_ie / σ) / (exp(s_ie / σ) + exp(s_in / σ)))

    Args:
        negatives: "semihard" is EPSHN, the paper's best; "hard" is EPHN; "easy" is for study.
        temperature: σ. 0.1, from the authors' program.
    """

    def __init__(
        self,
        *,
        negatives: Literal["semihard", "hard", "easy"] = "semihard",
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        if negatives not in {"semihard", "hard", "easy"}:
            raise ValueError(f"negatives must be semihard, hard or easy, got {negatives!r}")
        self.negatives = negatives
        self.temperature = temperature
        self._miner = BatchEasyHardMiner(
            pos_strategy="easy", neg_strategy=negatives, distance=CosineSimilarity()
        )

    def _value(self, batch: Batch) -> Tensor:
        indices = _mined(self._miner, batch)
        anchors, positives, negatives = convert_to_triplets(indices, batch.labels)
        similarity = batch.similarity()
        gap = similarity[anchors, negatives] - similarity[anchors, positives]
        return functional.softplus(gap / self.temperature).sum() / max(len(anchors), 1)


class MultiSimilarity(Rival):
    """Hard pairs, weighted by three kinds of similarity (Wang et al. 2019).

    A positive is hard when s_ip - ε is below the largest s_in, a negative when s_in + ε is above
    the smallest s_ip. Over the hard positives and negatives of each anchor:

        loss = mean_i 1/α log(1 + Σ_p exp(-α (s_ip - λ))) + 1/β log(1 + Σ_n exp(β (s_in - λ)))

    Args:
        positive_scale: α. 2, from the paper.
        negative_scale: β. 50, from the paper.
        base: λ. 0.5, from the authors' program.
        mining_margin: ε. 0.1, from the paper.
    """

    def __init__(
        self,
        *,
        positive_scale: float = 2.0,
        negative_scale: float = 50.0,
        base: float = 0.5,
        mining_margin: float = 0.1,
    ) -> None:
        super().__init__()
        self.positive_scale = positive_scale
        self.negative_scale = negative_scale
        self.base = base
        self.mining_margin = mining_margin
        self._miner = MultiSimilarityMiner(epsilon=mining_margin)
        self._loss = MultiSimilarityLoss(alpha=positive_scale, beta=negative_scale, base=base)

    def _value(self, batch: Batch) -> Tensor:
        return masked_pair_value(self._loss, batch, _mined(self._miner, batch))


class Circle(Rival):
    """Each similarity pulled by its own distance from the optimum (Sun et al. 2020).

    With weights a_ip = max(0, 1 + m - s_ip) and a_in = max(0, s_in + m) that carry no gradient,
    over the anchors that have positives and negatives:

        loss = mean_i log(1 + Σ_n exp(γ a_in (s_in - m)) Σ_p exp(-γ a_ip (s_ip - 1 + m)))

    Args:
        margin: m. 0.4, from the paper for fine-grained retrieval.
        scale: γ. 80, from the paper for fine-grained retrieval.
    """

    def __init__(self, *, margin: float = 0.4, scale: float = 80.0) -> None:
        super().__init__()
        self.margin = margin
        self.scale = scale
        self._loss = CircleLoss(m=margin, gamma=scale)

    def _value(self, batch: Batch) -> Tensor:
        return masked_pair_value(self._loss, batch, batch.indices)


class FastAP(Rival):
    """One minus the average precision, made smooth by histograms of distances (Cakir et al. 2019).

    For each anchor with positives, h_P and h count its positives and all its pairs over the nodes
    of the squared distance by linear interpolation, H_P and H are their running sums:

        loss = mean_i 1 - 1/|P_i| Σ_r h_P[r] H_P[r] / H[r]

    Args:
        bins: number of intervals of the squared distance between 0 and 4. 10, as in the library,
            which follows the authors' program.
    """

    _takes_indices = False
    _takes_references = False

    def __init__(self, *, bins: int = 10) -> None:
        super().__init__()
        self.bins = bins
        self._loss = FastAPLoss(num_bins=bins)

    def _value(self, batch: Batch) -> Tensor:
        value: Tensor = self._loss(batch.anchors, batch.labels)
        return value


def masked_pair_value(
    loss: torch.nn.Module, batch: Batch, indices: tuple[Tensor, ...] | None
) -> Tensor:
    """The value of a loss over masked pairs, also where there is one pair of each kind.

    pytorch-metric-learning gives zero when there is at most one pair of either kind. Its pair
    losses over masks do not count a pair twice, so that listing each pair twice gives their value.

    Args:
        loss: a loss of pytorch-metric-learning that works on masks of pairs.
        batch: what to compute it for.
        indices: pairs or triplets, or None for all pairs.
    """
    if indices is None:
        positive, negative = batch.masks()
        indices = (*positive.nonzero(as_tuple=True), *negative.nonzero(as_tuple=True))
    value: Tensor = loss(*pml_arguments(batch, tuple(index.repeat(2) for index in indices)))
    return value


def _mined(miner: torch.nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    if batch.indices is not None:
        return batch.indices
    arguments = pml_arguments(batch, None)
    mined: tuple[Tensor, ...] = miner(arguments[0], arguments[1], *arguments[3:])
    return mined


def pml_arguments(
    batch: Batch, indices: tuple[Tensor, ...] | None
) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None, Tensor | None, Tensor | None]:
    """The batch in the order of pytorch-metric-learning, where no references mean the batch.

    Args:
        batch: what to compute a loss for.
        indices: pairs or triplets, or None for all.
    """
    if batch.is_self:
        return batch.anchors, batch.labels, indices, None, None
    return batch.anchors, batch.labels, indices, batch.columns, batch.column_labels
