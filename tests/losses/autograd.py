"""The loss again as masked B × B matrices in float64, for autograd to differentiate."""

import torch
from torch import Tensor

from cbml import CBMLLoss
from cbml.losses.ratios import Exponent


def total(loss: CBMLLoss, rows: Tensor, labels: Tensor) -> Tensor:
    """L of a batch with itself; slow, large and plain."""
    unit = rows / rows.norm(dim=1, keepdim=True)
    similarity = unit @ unit.T
    same = labels[:, None] == labels[None, :]
    positive, negative = same & ~torch.eye(len(rows), dtype=torch.bool), ~same
    hard_positive, hard_negative = positive, negative
    if loss.mining_margin is not None:
        highest = similarity.masked_fill(~negative, -torch.inf).amax(dim=1, keepdim=True)
        lowest = similarity.masked_fill(~positive, torch.inf).amin(dim=1, keepdim=True)
        hard_positive = positive & (similarity < highest + loss.mining_margin)
        hard_negative = negative & (similarity > lowest - loss.mining_margin)
    p, n = positive.sum(dim=1).double(), negative.sum(dim=1).double()
    both = (p > 0) & (n > 0)
    if loss.delta == "derived":
        delta_p = torch.where(both, n / p.clamp(min=1) ** 2, 0.0)
        delta_n = torch.where(both, p / n.clamp(min=1) ** 2, 0.0)
    elif loss.delta == "mean":
        delta_p, delta_n = 1 / p.clamp(min=1), 1 / n.clamp(min=1)
    else:
        delta_p = delta_n = torch.full_like(p, float(loss.delta))
    keep = torch.ones_like(p)
    if loss.skip_easy_anchors:
        keep = (hard_positive.any(dim=1) & hard_negative.any(dim=1)).double()
    value = side(loss, loss.ratio.negative, similarity, hard_negative, delta_n)
    pull = side(loss, loss.ratio.positive, similarity, hard_positive, delta_p)
    value = value + loss.positive_weight * pull
    positive_mean = (similarity * positive).sum(dim=1) / p.clamp(min=1)
    negative_mean = (similarity * negative).sum(dim=1) / n.clamp(min=1)
    target = loss.target_mix * positive_mean + (1 - loss.target_mix) * negative_mean
    squares = ((similarity - target[:, None]).square() * negative).sum(dim=1) * both
    if loss.variance_reduction == "mean":
        squares = squares / n.clamp(min=1)
    return ((value + loss.variance_weight * squares) * keep).mean()


def side(
    loss: CBMLLoss, exponent: Exponent, similarity: Tensor, hard: Tensor, delta: Tensor
) -> Tensor:
    """f(1 + δ Σ Φ) of each anchor."""
    quadratic, slope, constant = exponent
    exponents = quadratic * similarity**2 + slope * similarity + constant
    exponents = torch.where(hard, exponents, -1e4)
    logarithm = torch.logsumexp(exponents, dim=1) + delta.log()  # of δ Σ Φ
    grown = torch.nn.functional.softplus(logarithm, threshold=700)  # log(1 + δ Σ Φ)
    if loss.averaging == "log":
        return grown
    return (grown / 2).exp() if loss.averaging == "sqrt" else grown.exp()
