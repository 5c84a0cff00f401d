"""The margin loss on pairs that a method chooses, and ways to choose them that several share."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from cbml.errors import check_choice
from cbml.losses import check_number
from cbml.training import BatchInfo

# Below the root, as in the authors' programs: an image has a finite gradient against itself.
_FLOOR = 1e-8


@dataclass(frozen=True)
class Pairs:
    """Rows of a batch two by two; a pair may come more than once.

    Args:
        anchors: (P,)
        others: (P,)
    """

    anchors: Tensor
    others: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> "Pairs":
        """The pairs that a table marks. (B, B)"""
        return cls(*mask.nonzero(as_tuple=True))


def distance_table(rows: Tensor) -> Tensor:
    """Distances of all pairs, without a gradient, to choose by. (B, B)"""
    rows = rows.detach()
    exact = "donot_use_mm_for_euclid_dist"
    return _root(torch.cdist(rows, rows, compute_mode=exact).square())


def margin_loss(
    rows: Tensor, positives: Pairs, negatives: Pairs, *, beta: Tensor, margin: float
) -> Tensor:
    """The mean of the terms above zero; zero, with its graph, where none is.

        d_ij = √(|x_i - x_j|² + 1e-8)
        positive terms: max(0, d_ij - β_i + m);   negative terms: max(0, β_i - d_ij + m)

    Args:
        rows: Unit vectors. (B, D)
        positives: Pairs of one class, the anchor first.
        negatives: Pairs of two classes, the anchor first.
        beta: β of each row. (B,)
        margin: m.
    """
    pull = _distances(rows, positives) - beta[positives.anchors] + margin
    push = beta[negatives.anchors] - _distances(rows, negatives) + margin
    terms = torch.cat([pull, push]).relu()
    return terms.sum() / (terms > 0.0).sum().clamp(min=1)


def inverse_density(distances: Tensor, dim: int, near: float) -> Tensor:
    """log 1/q(d), the weight of a distance among points spread evenly over the sphere. (B, B)

        log q(d) = (D - 2) log d + (D - 3) / 2 log(1 - d²/4)

    Args:
        distances: Of all pairs. (B, B)
        dim: D.
        near: Smaller distances weigh as this one.
    """
    inside = distances.clamp(min=near, max=2.0 - 1e-6)
    return (2 - dim) * inside.log() + (3 - dim) / 2 * (1.0 - inside.square() / 4.0).log()


class Draws:
    """Random choices among the rows of a batch, which follow from seed, step and images alone.

    The order of the rows does not matter, nor does the number of processes.

    Args:
        batch: The batch whose rows are drawn.
        seed: Random seed.
    """

    def __init__(self, batch: BatchInfo, seed: int) -> None:
        mixed = np.random.SeedSequence((seed, batch.step)).generate_state(1)[0]
        self._generator = torch.Generator().manual_seed(int(mixed))
        self._rank = batch.indices.cpu().argsort(stable=True).argsort()

    def columns(self, log_weights: Tensor, count: int = 1) -> Tensor:
        """Columns of each row without replacement, by weight; best first. (B, count)

        The largest of log w + Gumbel noise is a draw by w, the next one a draw among the rest.

        Args:
            log_weights: -inf where a column must not be drawn, which is only drawn where fewer
                than `count` are left. (B, B)
        """
        size = len(self._rank)
        uniform = torch.rand(size, size, generator=self._generator, dtype=torch.float64)
        gumbel = -(-uniform.clamp(min=1e-300).log()).log()
        noise = gumbel[self._rank][:, self._rank].to(log_weights.device)
        return (log_weights.double() + noise).topk(count, dim=1).indices


def sampled_pairs(
    rows: Tensor, batch: BatchInfo, draws: Draws, *, near: float
) -> tuple[Pairs, Pairs]:
    """For each anchor a positive, drawn evenly, and a negative, drawn evenly over distances.

    Anchors without either are left out.

    Args:
        rows: Unit vectors. (B, D)
        near: Distances below weigh as this one.
    """
    same = batch.labels[:, None] == batch.labels[None, :]
    positive = same & ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    weights = inverse_density(distance_table(rows), rows.shape[1], near)
    partner = draws.columns(even_weights(positive))[:, 0]
    other = draws.columns(weights.masked_fill(same, -torch.inf))[:, 0]
    anchors = torch.nonzero(positive.any(dim=1) & ~same.all(dim=1))[:, 0]
    return Pairs(anchors, partner[anchors]), Pairs(anchors, other[anchors])


def even_weights(mask: Tensor) -> Tensor:
    """Weights of one where the mask holds, and of zero elsewhere, as logarithms."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)


def _distances(rows: Tensor, pairs: Pairs) -> Tensor:
    return _root((rows[pairs.anchors] - rows[pairs.others]).square().sum(dim=1))


def _root(squares: Tensor) -> Tensor:
    return (squares + _FLOOR).sqrt()


Rule = Literal["classes", "standard", "full", "random"]


class MarginTriplets(nn.Module):
    """A margin loss with one triplet (a, p, n) for each anchor (Roth et al. 2020).

    Each class has a learned β, that of the anchor counts; see `margin_loss` for the terms. The
    negative n is drawn by 1 / q(d_an) among the rows of other classes, with q the density of
    distances on the sphere, and p:

        "classes":   evenly among the other rows of a's class
        "standard":  evenly among the rows whose class is neither that of a nor that of n
        "full":      the same, by 1 / q(d_ap)
        "random":    as "classes", once the labels are shuffled within the batch, for n too

    An anchor that has no p or no n is left out.

    Args:
        num_classes: Number of training classes.
        rule: How p is drawn. All but "classes" are for what classes share (Milbich et al. 2020).
        margin: m. 0.2, from the program of Roth et al., as all numbers here.
        beta: Start of β. 1.2.
        near: Smaller distances weigh as this one. 0.5.
        seed: Random seed of the draws.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        rule: Rule = "classes",
        margin: float = 0.2,
        beta: float = 1.2,
        near: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.rule = check_choice(rule, "rule", Rule)
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.near = check_number(near, "near", above=0.0)
        self.seed = seed
        self.beta = nn.Parameter(torch.full((num_classes,), check_number(beta, "beta", above=0.0)))

    def forward(self, rows: Tensor, batch: BatchInfo) -> Tensor:
        """The loss of freshly drawn triplets; zero, with its graph, where there are none."""
        anchors, positives, negatives = self.triplets(rows, batch)
        return margin_loss(
            rows,
            Pairs(anchors, positives),
            Pairs(anchors, negatives),
            beta=self.beta[batch.labels],
            margin=self.margin,
        )

    @torch.no_grad()
    def triplets(self, rows: Tensor, batch: BatchInfo) -> tuple[Tensor, Tensor, Tensor]:
        """Anchors, positives and negatives."""
        draws, labels = Draws(batch, self.seed), batch.labels
        if self.rule == "random":
            one = torch.zeros(1, len(labels), device=labels.device)
            labels = labels[draws.columns(one.expand(len(labels), -1), len(labels))[0]]
        same = labels[:, None] == labels[None, :]
        weights = inverse_density(distance_table(rows), rows.shape[1], self.near)
        negatives = draws.columns(weights.masked_fill(same, -torch.inf))[:, 0]
        if self.rule in ("classes", "random"):
            allowed = same & ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        else:
            allowed = ~same & (labels[None, :] != labels[negatives][:, None])
        shares = weights.masked_fill(~allowed, -torch.inf)
        positives = draws.columns(shares if self.rule == "full" else even_weights(allowed))[:, 0]
        anchors = torch.nonzero(allowed.any(dim=1) & ~same.all(dim=1))[:, 0]
        return anchors, positives[anchors], negatives[anchors]
