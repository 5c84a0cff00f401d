"""From embeddings and labels to the terms of the loss, differentiable once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cbml.losses.inputs import as_labels, as_matrix, as_pairs, unit_rows
from cbml.losses.kernel import Formula, pair_terms
from cbml.losses.pairs import LabelPairs, ListedPairs

__all__ = ["LossTerms", "compute_terms"]


@dataclass(frozen=True)
class LossTerms:
    """The parts of the loss of one batch; only the total carries a gradient.

    Args:
        positive: L_P, what the positive pairs cost.
        negative: L_N, what the negative pairs cost.
        variance: L_2, what the spread of the negatives costs, before its weight λ.
        total: L = L_P + L_N + λ L_2.
    """

    positive: Tensor
    negative: Tensor
    variance: Tensor
    total: Tensor


def compute_terms(
    embeddings: Tensor,
    labels: Tensor,
    indices_tuple: tuple[Tensor, ...] | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    formula: Formula,
) -> LossTerms:
    """The means over all anchors of the terms that `formula` describes.

    Args:
        embeddings: of the anchors, of any length. (B, D)
        labels: of the anchors. (B,)
        indices_tuple: pairs or triplets that take the place of all pairs given by the labels.
        ref_emb: embeddings to compare with; None for the anchors themselves. (R, D)
        ref_labels: their labels. (R,)
        formula: what to compute.
    """
    if (ref_emb is None) != (ref_labels is None):
        missing = "ref_emb" if ref_emb is None else "ref_labels"
        raise ValueError(f"ref_emb and ref_labels go together: {missing} is missing")
    if ref_emb is embeddings:
        ref_emb, ref_labels = None, None
    rows = as_matrix(embeddings, "embeddings")
    row_labels = as_labels(labels, rows, "labels")
    columns, column_labels = None, None
    if ref_emb is not None and ref_labels is not None:
        columns = as_matrix(ref_emb, "ref_emb").to(device=rows.device, dtype=rows.dtype)
        if columns.shape[1] != rows.shape[1]:
            raise ValueError(
                f"ref_emb has {columns.shape[1]} dimensions, embeddings has {rows.shape[1]}"
            )
        column_labels = as_labels(ref_labels, columns, "ref_labels")
    with torch.autocast(rows.device.type, enabled=False):
        means: tuple[Tensor, ...] = _PairLoss.apply(
            rows, columns, row_labels, column_labels, indices_tuple, formula
        )
    return LossTerms(*means)


class _PairLoss(torch.autograd.Function):
    """Value and gradient in one pass; the gradient waits for backward as (B, D) matrices."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor | None,
        row_labels: Tensor,
        column_labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        formula: Formula,
    ) -> tuple[Tensor, ...]:
        unit, lengths = unit_rows(rows, "embeddings")
        others, other_lengths = unit, lengths
        if columns is not None:
            others, other_lengths = unit_rows(columns, "ref_emb")
        if len(unit) == 0 or len(others) == 0:
            ctx.gradients = tuple(
                torch.zeros_like(matrix) if matrix is not None else None
                for matrix in (rows, columns)
            )
            return tuple(rows.new_zeros(4).unbind())

        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        if indices_tuple is None:
            row_order = torch.argsort(row_labels, stable=True)
            column_order = row_order
            if column_labels is not None:
                column_order = torch.argsort(column_labels, stable=True)
            sorted_columns = (row_labels if column_labels is None else column_labels)[column_order]
            pairs: LabelPairs | ListedPairs = LabelPairs(
                row_labels[row_order], sorted_columns, is_self=columns is None
            )
        else:
            row_order, column_order = None, None
            pairs = ListedPairs(
                as_pairs(indices_tuple, len(unit), len(others)),
                (len(unit), len(others)),
                unit.device,
            )
        sums = pair_terms(
            _ordered(unit, row_order),
            None if columns is None else _ordered(others, column_order),
            pairs,
            formula,
            wanted,
        )
        count = len(unit)
        ctx.gradients = (
            _through_lengths(sums.grad_rows, row_order, unit, lengths * count),
            _through_lengths(sums.grad_columns, column_order, others, other_lengths * count),
        )
        means = [term / count for term in (sums.positive, sums.negative, sums.variance)]
        total = means[0] + means[1] + formula.variance_weight * means[2]
        ctx.mark_non_differentiable(*means)
        return (*means, total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad_outputs[-1]
        found = tuple(None if grad is None else grad * scale for grad in ctx.gradients)
        return (*found, None, None, None, None)


def _ordered(matrix: Tensor, order: Tensor | None) -> Tensor:
    return matrix if order is None else matrix[order]


def _through_lengths(
    grad: Tensor | None, order: Tensor | None, unit: Tensor, lengths: Tensor
) -> Tensor | None:
    """The gradient of the embeddings from that of their unit vectors, back in their own order."""
    if grad is None:
        return None
    if order is not None:
        grad = torch.empty_like(grad).index_copy_(0, order, grad)
    along = (grad * unit).sum(dim=1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1.0).div_(lengths)
