"""Losses that look at one pair at a time: how similar is it, how similar should it be."""

import torch
from torch import Tensor
from torch.nn import functional

from cbml.losses.baselines.baseline import BaselineLoss, Batch, distances, masked_mean
from cbml.losses.options import check_count, check_flag, check_number


class Contrastive(BaselineLoss):
    """Pull positive pairs together, push negative pairs beyond a margin (Hadsell et al. 2006).

    With D_ij the Euclidean distance of unit vectors:

        loss = mean_{(i,j)∈P} ½ D_ij² + mean_{(i,j)∈N, D_ij<m} ½ (m - D_ij)²

    The paper sums; the means keep the scale free of the batch size and give both kinds of pairs
    the same say, as the balanced draw of pairs does there. Written here because
    pytorch-metric-learning leaves out the squares.

    Args:
        margin: m. 1, as Song et al. 2016 set it for these data; Hadsell et al. leave it open.
    """

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = check_number(margin, "margin", above=0.0)

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity()
        positive, negative = batch.masks()
        shortfall = self.margin - distances(similarity)
        pull = masked_mean(1.0 - similarity, positive)  # D² / 2 without the root
        return pull + masked_mean(shortfall.square() / 2.0, negative & (shortfall > 0.0))


class BinomialDeviance(BaselineLoss):
    """Logistic cost of each pair on the right side of a threshold (Yi et al. 2014).

    With s_ij the similarity, m_ij = 1 for positives and -C for negatives, and n_P, n_N their
    numbers:

        loss = 1/n_P Σ_{(i,j)∈P} log(1 + exp(-α (s_ij - β)))
             + 1/n_N Σ_{(i,j)∈N} log(1 + exp(α C (s_ij - β)))

    Args:
        scale: α. 2, from Ustinova and Lempitsky 2016.
        threshold: β. 0.5, from the same.
        negative_cost: C. 25, from the same.
    """

    def __init__(
        self, *, scale: float = 2.0, threshold: float = 0.5, negative_cost: float = 25.0
    ) -> None:
        super().__init__()
        self.scale = check_number(scale, "scale", above=0.0)
        self.threshold = check_number(threshold, "threshold")
        self.negative_cost = check_number(negative_cost, "negative_cost", above=0.0)

    def _value(self, batch: Batch) -> Tensor:
        margin = self.scale * (batch.similarity() - self.threshold)
        positive, negative = batch.masks()
        positive_part = masked_mean(functional.softplus(-margin), positive)
        negative_cost = functional.softplus(self.negative_cost * margin)
        return positive_part + masked_mean(negative_cost, negative)


class Histogram(BaselineLoss):
    """Probability that a negative pair is more similar than a positive one (Ustinova et al. 2016).

    Both kinds of similarities are spread over the nodes t_r = -1 + rΔ by linear interpolation:

        h_P[r] = mean_{(i,j)∈P} max(0, 1 - |s_ij - t_r| / Δ),  h_N likewise
        loss   = Σ_r h_N[r] Σ_{q≤r} h_P[q]

    Written here because pytorch-metric-learning leaves out the negative pairs of images that
    have no positive, and stops with an index error when a similarity is rounded to one.

    Args:
        bins: Number of intervals between -1 and 1, Δ = 2 / bins. 200, Δ = 0.01; the paper finds
            that the number matters little.
    """

    def __init__(self, *, bins: int = 200) -> None:
        super().__init__()
        self.bins = check_count(bins, "bins")

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity()
        positive, negative = batch.masks()
        below = self._density(similarity[positive]).cumsum(0)
        return (self._density(similarity[negative]) * below).sum()

    def _density(self, similarity: Tensor) -> Tensor:
        position = (similarity.clamp(-1.0, 1.0) + 1.0) * (self.bins / 2.0)
        # A similarity of one belongs to the end of the last interval, not to one after it.
        left = position.detach().floor().clamp(max=self.bins - 1.0)
        right_share = position - left
        nodes = similarity.new_zeros(self.bins + 1)
        nodes = nodes.index_add(0, left.long(), 1.0 - right_share)
        nodes = nodes.index_add(0, left.long() + 1, right_share)
        return nodes / max(len(similarity), 1)


class RankedList(BaselineLoss):
    """Positives inside one sphere, negatives outside a larger one (Wang et al. 2019).

    With D_ij the Euclidean distance of unit vectors, for each anchor i over the pairs that break
    their boundary, with weights that carry no gradient:

        L_P   = Σ_p w_p (D_ip - (α - m)) / Σ_p w_p,   w_p = exp(T_P (D_ip - (α - m)))
        L_N   = Σ_n w_n (α - D_in) / Σ_n w_n,          w_n = exp(T_N (α - D_in))
        loss  = mean_i (1 - λ) L_P + λ L_N

    Written here because pytorch-metric-learning ignores negatives at distance zero, the worst of
    all, and warns about the paper's own temperature.

    Args:
        boundary: α. 1.2, from the paper.
        margin: m. 0.4, from the paper.
        negative_temperature: T_N. 10, from the paper.
        positive_temperature: T_P. 0, from the paper: positives weigh the same.
        negative_share: λ. 0.5, from the paper.
        gallery_gradient: Whether the gradient of an anchor's term reaches the images it is compared
            with. True, the derivative of the formula; the authors' poster has it False: the anchor
            alone moves.
    """

    def __init__(
        self,
        *,
        boundary: float = 1.2,
        margin: float = 0.4,
        negative_temperature: float = 10.0,
        positive_temperature: float = 0.0,
        negative_share: float = 0.5,
        gallery_gradient: bool = True,
    ) -> None:
        super().__init__()
        self.boundary = check_number(boundary, "boundary", above=0.0)
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.negative_temperature = check_number(
            negative_temperature, "negative_temperature", at_least=0.0
        )
        self.positive_temperature = check_number(
            positive_temperature, "positive_temperature", at_least=0.0
        )
        self.negative_share = check_number(
            negative_share, "negative_share", at_least=0.0, at_most=1.0
        )
        self.gallery_gradient = check_flag(gallery_gradient, "gallery_gradient")

    def _value(self, batch: Batch) -> Tensor:
        columns = batch.columns if self.gallery_gradient else batch.columns.detach()
        distance = distances(batch.anchors @ columns.T)
        positive, negative = batch.masks()
        too_far = distance - (self.boundary - self.margin)
        too_near = self.boundary - distance
        positive_part = _weighted_rows(too_far, positive, self.positive_temperature)
        negative_part = _weighted_rows(too_near, negative, self.negative_temperature)
        share = self.negative_share
        return ((1.0 - share) * positive_part + share * negative_part).mean()


class RankedListSimpler(RankedList):
    """`RankedList` with two numbers left to choose: RLL-Simpler (Wang et al. 2021).

        α = 1 + m / 2,   T_P = 0,   λ = 0.5

    so that the two spheres lie at the same distance from one. With its defaults it has the value
    of `RankedList`. The authors withdrew their program; the reduction is the one that
    pytorch-metric-learning documents, the numbers are those of the paper before it.

    Args:
        margin: m. 0.4, as `RankedList`.
        negative_temperature: T_N. 10, as `RankedList`.
        gallery_gradient: As in `RankedList`. True, as there.
    """

    def __init__(
        self,
        *,
        margin: float = 0.4,
        negative_temperature: float = 10.0,
        gallery_gradient: bool = True,
    ) -> None:
        super().__init__(
            boundary=1.0 + check_number(margin, "margin", at_least=0.0) / 2.0,
            margin=margin,
            negative_temperature=negative_temperature,
            gallery_gradient=gallery_gradient,
        )


def _weighted_rows(violation: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """Mean of each row's violations above zero, weighted by exp(temperature · violation). (B,)"""
    mask = mask & (violation > 0.0)
    exponents = (temperature * violation.detach()).masked_fill(
        ~mask, torch.finfo(violation.dtype).min
    )
    return (exponents.softmax(dim=1) * violation.masked_fill(~mask, 0.0)).sum(dim=1)
