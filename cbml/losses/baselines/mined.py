"""Losses that choose among their pairs, each by the miner of its paper, or rank all of them."""

from typing import Literal

import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import (
    CircleLoss,
    FastAPLoss,
    MultiSimilarityLoss,
    TripletMarginLoss,
)
from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_triplets
from torch import Tensor
from torch.nn import functional

from cbml.errors import check_choice
from cbml.losses.baselines.baseline import BaselineLoss, Batch
from cbml.losses.options import check_count, check_number

Negatives = Literal["semihard", "hard", "easy"]


class TripletSemihard(BaselineLoss):
    """Triplets whose negative is farther than the positive, but not by the margin (FaceNet).

    Schroff et al. 2015. With D_ij² the squared distance of unit vectors, over all triplets of the
    batch with 0 < D_in² - D_ip² < m:

        loss = mean (D_ip² - D_in² + m)

    Args:
        margin: m. 0.2, from the paper.
    """

    def __init__(self, *, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = check_number(margin, "margin", above=0.0)
        distance = LpDistance(normalize_embeddings=False, power=2)
        self._loss = TripletMarginLoss(margin=margin, distance=distance)

    def _mined(self, batch: Batch) -> tuple[Tensor, ...]:
        positive, negative = batch.masks()
        squares = 2.0 - 2.0 * batch.similarity()
        anchors, positives = positive.nonzero(as_tuple=True)
        gap = squares[anchors] - squares[anchors, positives][:, None]  # (P, R)
        band = negative[anchors] & (gap > 0.0) & (gap < self.margin)
        pairs, negatives = band.nonzero(as_tuple=True)
        return anchors[pairs], positives[pairs], negatives

    def _value(self, batch: Batch) -> Tensor:
        value: Tensor = self._loss(*pml_arguments(batch, self._chosen(batch)))
        return value


class TripletEasyPositive(BaselineLoss):
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
        negatives: Negatives = "semihard",
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        self.negatives = check_choice(negatives, "negatives", Negatives)
        self.temperature = check_number(temperature, "temperature", above=0.0)

    def _mined(self, batch: Batch) -> tuple[Tensor, ...]:
        similarity = batch.similarity()
        positive, negative = batch.masks()
        easiest, positives = similarity.masked_fill(~positive, -torch.inf).max(dim=1)  # (B,)
        if self.negatives == "semihard":
            negative &= similarity < easiest[:, None]
        order = -similarity if self.negatives == "easy" else similarity
        negatives = order.masked_fill(~negative, -torch.inf).argmax(dim=1)
        anchors = (positive.any(dim=1) & negative.any(dim=1)).nonzero()[:, 0]
        return anchors, positives[anchors], negatives[anchors]

    def _value(self, batch: Batch) -> Tensor:
        anchors, positives, negatives = convert_to_triplets(self._chosen(batch), batch.labels)
        similarity = batch.similarity()
        gap = similarity[anchors, negatives] - similarity[anchors, positives]
        return functional.softplus(gap / self.temperature).sum() / max(len(anchors), 1)


class MultiSimilarity(BaselineLoss):
    """Hard pairs, weighted by three kinds of similarity (Wang et al. 2019).

    A positive is hard when s_ip - ε is below the largest s_in, a negative when s_in + ε is above
    the smallest s_ip. Over the hard positives and negatives of each anchor:

        loss = mean_i 1/α log(1 + Σ_p exp(-α (s_ip - λ))) + 1/β log(1 + Σ_n exp(β (s_in - λ)))

    Args:
        positive_scale: α. 2, from the paper.
        negative_scale: β. 50, from the paper; the authors' program has 40.
        base: λ. 0.5, from the authors' program; the paper has 1.
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
        self.positive_scale = check_number(positive_scale, "positive_scale", above=0.0)
        self.negative_scale = check_number(negative_scale, "negative_scale", above=0.0)
        self.base = check_number(base, "base")
        self.mining_margin = check_number(mining_margin, "mining_margin")
        self._loss = MultiSimilarityLoss(alpha=positive_scale, beta=negative_scale, base=base)

    def _mined(self, batch: Batch) -> tuple[Tensor, ...]:
        return hard_pairs(batch, self.mining_margin)

    def _value(self, batch: Batch) -> Tensor:
        return masked_pair_value(self._loss, batch, self._chosen(batch))


class Circle(BaselineLoss):
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
        self.margin = check_number(margin, "margin", at_least=0.0, at_most=1.0)
        self.scale = check_number(scale, "scale", above=0.0)
        self._loss = CircleLoss(m=margin, gamma=scale)

    def _value(self, batch: Batch) -> Tensor:
        return masked_pair_value(self._loss, batch, batch.indices)


class FastAP(BaselineLoss):
    """One minus the average precision, made smooth by histograms of distances (Cakir et al. 2019).

    For each anchor with positives, h_P and h count its positives and all its pairs over the nodes
    of the squared distance by linear interpolation, H_P and H are their running sums:

        loss = mean_i 1 - 1/|P_i| Σ_r h_P[r] H_P[r] / H[r]

    Args:
        bins: Number of intervals of the squared distance between 0 and 4. 10, as in the library,
            which follows the authors' program.
    """

    _takes_indices = False
    _takes_references = False

    def __init__(self, *, bins: int = 10) -> None:
        super().__init__()
        self.bins = check_count(bins, "bins")
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
        loss: A loss of pytorch-metric-learning that works on masks of pairs.
        indices: Pairs or triplets, or None for all pairs.
    """
    if indices is None:
        positive, negative = batch.masks()
        indices = (*positive.nonzero(as_tuple=True), *negative.nonzero(as_tuple=True))
    value: Tensor = loss(*pml_arguments(batch, tuple(index.repeat(2) for index in indices)))
    return value


@torch.no_grad()
def hard_pairs(batch: Batch, margin: float) -> tuple[Tensor, ...]:
    """Positives within the margin of the hardest negative, negatives of the hardest positive."""
    similarity = batch.similarity()
    positive, negative = hard_masks(similarity, similarity, batch.masks(), margin)
    return (*positive.nonzero(as_tuple=True), *negative.nonzero(as_tuple=True))


@torch.no_grad()
def hard_masks(
    pulled: Tensor, pushed: Tensor, masks: tuple[Tensor, Tensor], margin: float
) -> tuple[Tensor, Tensor]:
    """The same choice as masks, of positives from one matrix and negatives from another.

    Args:
        pulled: Similarities of positives. (L, P)
        pushed: Similarities of negatives. (L, N)
        masks: Which entries of each are pairs at all.
        margin: ε.
    """
    positive, negative = masks
    hardest_positive = pulled.masked_fill(~positive, torch.inf).amin(dim=1, keepdim=True)
    hardest_negative = pushed.masked_fill(~negative, -torch.inf).amax(dim=1, keepdim=True)
    return (
        positive & (pulled - margin < hardest_negative),
        negative & (pushed + margin > hardest_positive),
    )


def pml_arguments(
    batch: Batch, indices: tuple[Tensor, ...] | None
) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None, Tensor | None, Tensor | None]:
    """The batch in the order of pytorch-metric-learning, where no references mean the batch."""
    if batch.is_self:
        return batch.anchors, batch.labels, indices, None, None
    return batch.anchors, batch.labels, indices, batch.columns, batch.column_labels
