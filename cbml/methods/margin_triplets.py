"""The margin loss on one triplet of each anchor, by class or across classes."""

from typing import Literal

import torch
from torch import Tensor, nn

from cbml.errors import check_choice
from cbml.losses import check_number
from cbml.methods.margin import (
    Draws,
    Pairs,
    distance_table,
    even_weights,
    inverse_density,
    margin_loss,
)
from cbml.training import BatchInfo

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
        """The loss of freshly drawn triplets; zero, with its graph, where there are none.

        Args:
            rows: Unit vectors. (B, D)
        """
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
        """Anchors, positives and negatives.

        Args:
            rows: Unit vectors. (B, D)
        """
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
