"""Hard-aware deeply cascaded embedding: three depths, each trained on harder pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cbml.errors import BadData, check_choice
from cbml.losses import check_number
from cbml.models import Head
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, StepLoss

# One sub-embedding for each of three depths of a network, as several methods have them.

#: The parts in the order of their depth.
LEVEL_NAMES = ("low", "middle", "high")
_TAPS = ("low", "middle", "")


def level_heads(
    dim: int, *, weights: Sequence[float] = (1.0, 1.0, 1.0), hidden: tuple[int, ...] = ()
) -> tuple[Head, ...]:
    """A head for each depth, as equal in width as they can be, the deepest the widest.

    Args:
        hidden: Widths of the layers before the last one of the two lower heads.
    """
    if dim < len(LEVEL_NAMES):
        raise BadData(f"dim {dim}: three levels need an embedding of at least 3 numbers")
    widths = [(dim + level) // len(LEVEL_NAMES) for level in range(len(LEVEL_NAMES))]
    return tuple(
        Head(name=name, dim=width, tap=tap, hidden=hidden if tap else (), weight=weight)
        for name, tap, width, weight in zip(LEVEL_NAMES, _TAPS, widths, weights, strict=True)
    )


@dataclass(frozen=True)
class _Pairs:
    """Masks of the pairs that a level is trained on: positives once, negatives in both orders."""

    positive: Tensor
    negative: Tensor


class HDC(Method):
    """A contrastive loss at each of three depths, on its hardest pairs (Yuan et al. 2017).

    With D²_ij the squared distance of the unit vectors of level k, of share h_k:

        l+_ij = D²_ij                     i < j of one class, D²_ij > 0
        l-_ij = c max(0, M - D²_ij)       i, j of two classes, in both orders
        L_k   = (Σ kept l+ + Σ kept l-) / n,   the ⌊h_k ·⌋ largest of each kind are kept,
                                               n of them are above zero
        loss  = L_1 + L_2 + L_3

    The gradient is that of the authors' program, which is not the derivative of this value: it is
    that of (Σ kept l+ + ½ Σ kept l-) / 2n.

    Args:
        margin: M. 1, from the authors' program.
        negative_factor: c. 10, from its second release; the first has none, which is 1.
        hard_shares: h, from the lowest level to the highest. 1, 0.5 and 0.2, from the paper.
        cascade: "independent" lets each level choose among all pairs by its own losses, as the
            program does; "nested" trains level k on the hardest h_k of the pairs that level k - 1
            was trained on, by the losses of level k - 1, as the paper says.
        weights: Weights of the levels in the embedding. The authors take 1, 1, 2 for CUB, 1, 2, 3
            for Cars and 1, 1, 1 for SOP.
        hidden: Width of the layer with a ReLU before the last one of the two lower levels. 1024,
            from the program.
    """

    smallest_batch = (2, 2)

    def __init__(
        self,
        *,
        margin: float = 1.0,
        negative_factor: float = 10.0,
        hard_shares: Sequence[float] = (1.0, 0.5, 0.2),
        cascade: Literal["independent", "nested"] = "independent",
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        hidden: int = 1024,
    ) -> None:
        super().__init__()
        self.margin = check_number(margin, "margin", above=0.0)
        self.negative_factor = check_number(negative_factor, "negative_factor", above=0.0)
        self.hard_shares = [
            check_number(share, "hard_shares", above=0.0, at_most=1.0) for share in hard_shares
        ]
        self.weights = [check_number(weight, "weights", at_least=0.0) for weight in weights]
        if len(self.hard_shares) != len(LEVEL_NAMES) or len(self.weights) != len(LEVEL_NAMES):
            raise ValueError("hard_shares and weights: give one number for each of three levels")
        self.nested = check_choice(cascade, "cascade", ("independent", "nested")) == "nested"
        self.hidden = hidden

    def heads(self, dim: int) -> tuple[Head, ...]:
        """Three levels of the backbone.

        Args:
            dim: Width of all together; 384 in the paper's tables.
        """
        return level_heads(dim, weights=self.weights, hidden=(self.hidden,))

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The sum of the levels' losses."""
        kept: _Pairs | None = None
        terms = {}
        for name, share in zip(LEVEL_NAMES, self.hard_shares, strict=True):
            squares = _squared_distances(outputs.parts[name])
            positive = squares
            negative = self.negative_factor * (self.margin - squares).clamp(min=0.0)
            if kept is None or not self.nested:
                kept = _hardest(_all_pairs(squares, batch.labels), positive, negative, share)
            terms[name] = _mean(kept, positive, negative)
            if self.nested and name != LEVEL_NAMES[-1]:
                coming = self.hard_shares[LEVEL_NAMES.index(name) + 1]
                kept = _hardest(kept, positive, negative, coming)
        return StepLoss(torch.stack([*terms.values()]).sum(), terms)


def _squared_distances(rows: Tensor) -> Tensor:
    lengths = rows.square().sum(dim=1)
    return (lengths[:, None] + lengths[None, :] - 2.0 * rows @ rows.T).clamp(min=0.0)


def _all_pairs(squares: Tensor, labels: Tensor) -> _Pairs:
    same = labels[:, None] == labels[None, :]
    return _Pairs(same.triu(1) & (squares > 0.0), ~same)


def _hardest(pairs: _Pairs, positive: Tensor, negative: Tensor, share: float) -> _Pairs:
    """The share of each kind of pairs with the largest losses."""
    return _Pairs(
        _largest(positive.detach(), pairs.positive, share),
        _largest(negative.detach(), pairs.negative, share),
    )


def _largest(losses: Tensor, mask: Tensor, share: float) -> Tensor:
    count = int(share * int(mask.sum()) + 1e-6)  # 0.29 · 100 must not become 28
    order = losses.masked_fill(~mask, -1.0).flatten().argsort(descending=True, stable=True)
    kept = torch.zeros_like(mask).flatten()
    kept[order[:count]] = True
    return kept.view_as(mask)


def _mean(kept: _Pairs, positive: Tensor, negative: Tensor) -> Tensor:
    """The mean of the kept losses above zero, with the gradient of the authors' program."""
    positives = positive.masked_fill(~kept.positive, 0.0)
    negatives = negative.masked_fill(~kept.negative, 0.0)
    active = ((positives > 0.0).sum() + (negatives > 0.0).sum()).clamp(min=1)
    value = (positives.sum() + negatives.sum()) / active
    trained = (positives.sum() + negatives.sum() / 2.0) / (2.0 * active)
    return value.detach() + trained - trained.detach()
