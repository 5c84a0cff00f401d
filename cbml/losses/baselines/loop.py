"""The closest points of two arcs between images of a class, taken as hard negatives."""

import torch
from torch import Tensor

from cbml.losses.baselines.baseline import Batch
from cbml.losses.baselines.mined import hard_masks
from cbml.losses.baselines.multi_similarity import MatrixMultiSimilarity, partners


class MultiSimilarityLoOp(MatrixMultiSimilarity):
    """`MultiSimilarity` with optimal hard negatives, LoOp (Vasudeva et al. 2021).

    Images of a class are paired in the order of the batch, an odd one stays alone. Between the two
    images i, i' of pair l runs an arc of a great circle, and a negative is as similar as the
    closest points of two arcs:

        S_lm = max_{p∈arc l, q∈arc m} p·q

    The positives of a pair are those of both its images, s_ii' once. Of these and of the pairs m of
    other classes the hard ones count, for pairs that have both; a sum, not a mean:

        loss = Σ_l 1/α log(1 + Σ exp(-α (s - λ))) + 1/β log(1 + Σ_m exp(β (S_lm - λ)))

    Args:
        positive_scale: α. 2, from the authors' program, as are all the numbers.
        negative_scale: β. 50.
        base: λ. 0.4.
        mining_margin: ε. -0.02: stricter than zero.
    """

    def __init__(
        self,
        *,
        positive_scale: float = 2.0,
        negative_scale: float = 50.0,
        base: float = 0.4,
        mining_margin: float = -0.02,
    ) -> None:
        super().__init__(positive_scale, negative_scale, base, mining_margin)

    def _value(self, batch: Batch) -> Tensor:
        similarity, (same_class, _) = batch.similarity(), batch.masks()
        other = partners(batch.labels)
        first = (torch.arange(len(other), device=other.device) <= other).nonzero()[:, 0]  # (L,)
        second = other[first]
        pulled = torch.cat((similarity[first], similarity[second]), dim=1)  # (L, 2B)
        positive_again = same_class[second].scatter(1, first[:, None], False)
        positive_again &= (second != first)[:, None]  # one that is alone has its positives once
        positive = torch.cat((same_class[first], positive_again), dim=1)
        pushed = arc_similarity(batch.anchors[first], batch.anchors[second])
        negative = batch.labels[first][:, None] != batch.labels[first][None, :]
        positive, negative = hard_masks(pulled, pushed, (positive, negative), self.mining_margin)
        both = positive.any(dim=1) & negative.any(dim=1)
        values = self._pull(pulled, positive) + self._push(pushed, negative)
        return values.masked_fill(~both, 0.0).sum()


def arc_similarity(starts: Tensor, ends: Tensor) -> Tensor:
    """The largest similarity of any point of one arc with any point of another. (L, L)

    With n the unit vector at a right angle to the start, an arc is start cos a + n sin a, and the
    similarity of two of them u(a)ᵀ M u(b), u(t) = (cos t, sin t). Its largest value lies at two
    ends, at one end and a point inside the other arc, or inside both; all ten are tried. At a point
    inside, the derivative by its angle is zero, so that angles may be constants; an end is the
    image itself.

    Args:
        starts: Unit vectors. (L, D)
        ends: Unit vectors; an arc without a direction, between equal or opposite images, has its
            two ends alone. (L, D)
    """
    cosine = (starts * ends).sum(dim=1, keepdim=True)
    aside = ends - cosine * starts
    length = torch.linalg.vector_norm(aside.detach(), dim=1, keepdim=True)
    curved = length > 1e-3
    # Divided with its gradient where that is finite.
    scale = torch.where(curved, aside, torch.ones_like(aside)).norm(dim=1, keepdim=True)
    normal = torch.where(curved, aside / scale, torch.zeros_like(aside))
    angle = torch.where(curved, cosine.detach().clamp(-1.0, 1.0).acos(), 0.0)[:, 0]  # (L,)
    frame = torch.stack((starts, normal, ends), dim=1)  # (L, 3, D)
    table = torch.einsum("lgd,mhd->lmgh", frame, frame)  # (L, L, 3, 3)
    with torch.no_grad():
        rows, columns, allowed = _candidates(table[..., :2, :2], angle)
        values = torch.einsum("lmcg,lmgh,lmch->lmc", rows, table, columns)
        best = values.masked_fill(~allowed, -torch.inf).argmax(dim=2)[..., None, None]
        best = best.expand(-1, -1, 1, 3)
        row, column = rows.gather(2, best)[:, :, 0], columns.gather(2, best)[:, :, 0]  # (L, L, 3)
    return torch.einsum("lmg,lmgh,lmh->lm", row, table, column)


def _candidates(matrix: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Points of the row's and the column's arc in their frames, and which of them lie on both.

    (L, L, 10, 3) twice and (L, L, 10)
    """
    row_end = angle[:, None].expand(matrix.shape[:2])  # (L, L)
    column_end = row_end.T
    zero = torch.zeros_like(row_end)
    start, end = matrix.new_tensor([1.0, 0.0, 0.0]), matrix.new_tensor([0.0, 0.0, 1.0])
    rows, columns, allowed = [], [], []

    def add(row: Tensor, column: Tensor, inside: Tensor) -> None:
        rows.append(row.expand(*zero.shape, 3))
        columns.append(column.expand(*zero.shape, 3))
        allowed.append(inside)

    for row in (start, end):
        for column in (start, end):
            add(row, column, zero == 0.0)
    for point, at in ((start, zero), (end, row_end)):
        best = _top(_plane(at)[..., None, :] @ matrix)
        add(point, _lift(best), _within(best, column_end))
    for point, at in ((start, zero), (end, column_end)):
        best = _top((matrix @ _plane(at)[..., None]).transpose(2, 3))
        add(_lift(best), point, _within(best, row_end))
    # u(a)ᵀ M u(b) is a wave in a - b plus a wave in a + b: both are highest here or half a turn on.
    (m11, m12), (m21, m22) = (line.unbind(-1) for line in matrix.unbind(-2))
    difference, total = torch.atan2(m21 - m12, m11 + m22), torch.atan2(m12 + m21, m11 - m22)
    for turn in (0.0, torch.pi):
        a, b = (_wrapped((total + way * difference) / 2.0 + turn) for way in (1.0, -1.0))
        add(_lift(a), _lift(b), _within(a, row_end) & _within(b, column_end))
    return torch.stack(rows, dim=2), torch.stack(columns, dim=2), torch.stack(allowed, dim=2)


def _plane(angle: Tensor) -> Tensor:
    return torch.stack((angle.cos(), angle.sin()), dim=-1)


def _lift(angle: Tensor) -> Tensor:
    """A point inside an arc, in the frame of start, normal and end."""
    return torch.stack((angle.cos(), angle.sin(), torch.zeros_like(angle)), dim=-1)


def _top(wave: Tensor) -> Tensor:
    """Where c cos t + d sin t is highest, of (c, d) in the last dimension but one row."""
    return torch.atan2(wave[..., 0, 1], wave[..., 0, 0])


def _within(angle: Tensor, end: Tensor) -> Tensor:
    return (angle > 0.0) & (angle < end)


def _wrapped(angle: Tensor) -> Tensor:
    """The same angle between -π and π."""
    return torch.atan2(angle.sin(), angle.cos())
