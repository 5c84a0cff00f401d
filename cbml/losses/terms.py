"""From embeddings and labels to the terms of the loss, differentiable once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbml.losses.inputs import as_labels, as_matrix, as_pairs, unit_rows
from cbml.losses.kernel import Formula, PairSums, pair_terms
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
    if ref_emb is embeddings and ref_labels is not None:
        if ref_labels is not labels and not torch.equal(ref_labels, labels):
            raise ValueError("ref_emb is embeddings itself, but ref_labels differ from labels")
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
            sums = _no_pairs(rows, columns, formula)
        else:
            wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
            pairs: LabelPairs | ListedPairs = LabelPairs(row_labels, column_labels)
            if indices_tuple is not None:
                shape = (len(unit), len(others))
                pairs = ListedPairs(as_pairs(indices_tuple, *shape), shape, unit.device)
            sums = pair_terms(unit, None if columns is None else others, pairs, formula, wanted)
        count = max(1, len(unit))
        ctx.save_for_backward(
            rows,
            columns,
            _through_lengths(sums.grad_rows, unit, lengths * count),
            _through_lengths(sums.grad_columns, others, other_lengths * count),
        )
        means = [term / count for term in (sums.positive, sums.negative, sums.variance)]
        total = means[0] + means[1] + formula.variance_weight * means[2]
        ctx.mark_non_differentiable(*means)
        return (*means, total)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns, grad_rows, grad_columns = ctx.saved_tensors
        scale = grad_outputs[-1]
        found = [
            None if grad is None else _DifferentiatedOnce.apply(grad * scale, matrix)
            for grad, matrix in ((grad_rows, rows), (grad_columns, columns))
        ]
        return (*found, None, None, None, None)


class _DifferentiatedOnce(torch.autograd.Function):
    """The gradient, as a function of the embeddings whose own derivative nobody has derived."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, matrix: Tensor) -> Tensor:
        del ctx, matrix  # an argument, so that a second derivative by it comes here
        return grad

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(
            "this loss can be differentiated once: its gradient is derived by hand, its second "
            "derivative is not"
        )


def _no_pairs(rows: Tensor, columns: Tensor | None, formula: Formula) -> PairSums:
    """The sums where there is nothing to compare: f(1) for each anchor, with zero gradients."""
    silent = formula.averaging == "log" or formula.ratio is None or formula.skip_easy_anchors
    each = rows.new_full((), 0.0 if silent else float(len(rows)))
    return PairSums(
        each,
        each.clone(),
        torch.zeros_like(each),
        torch.zeros_like(rows),
        None if columns is None else torch.zeros_like(columns),
    )


def _through_lengths(grad: Tensor | None, unit: Tensor, lengths: Tensor) -> Tensor | None:
    """The gradient of the embeddings from that of their unit vectors."""
    if grad is None:
        return None
    along = (grad * unit).sum(dim=1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1.0).div_(lengths)
