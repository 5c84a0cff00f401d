"""From embeddings and labels to the terms of the loss, differentiable once.

All that reads values (checks, mining, tiles) happens inside one registered operator, `cbml::terms`,
so that torch's compiler and exporter see a single node and the transforms of `torch.func` its
gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from cbml.losses.inputs import (
    MetricLoss,
    as_labels,
    as_matrix,
    as_pairs,
    as_references,
    check_range,
    unit_rows,
    without_self_references,
)
from cbml.losses.kernel import Formula, PairSums, pair_terms
from cbml.losses.options import Averaging
from cbml.losses.pairs import LabelPairs, ListedPairs
from cbml.losses.ratios import Exponent


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
    """The means over all anchors of the terms that `formula` describes."""
    ref_emb, ref_labels = without_self_references(embeddings, labels, ref_emb, ref_labels)
    rows = as_matrix(embeddings, "embeddings")
    row_labels = as_labels(labels, rows, "labels")
    columns, column_labels = None, None
    if ref_emb is not None and ref_labels is not None:
        columns, column_labels = as_references(ref_emb, ref_labels, rows)
    positives, negatives = (None, None) if indices_tuple is None else as_pairs(indices_tuple)
    learns = torch.is_grad_enabled()
    # The compiler takes the operator whole; torch.func wants the function.
    evaluate = _operator if torch.compiler.is_compiling() else _Terms.apply
    total, parts, _, _ = evaluate(
        rows,
        columns,
        row_labels,
        column_labels,
        positives,
        negatives,
        [] if formula.ratio is None else [*formula.ratio[0], *formula.ratio[1]],
        formula.averaging,
        1.0 if isinstance(formula.delta, str) else formula.delta,
        formula.delta if isinstance(formula.delta, str) else "",
        formula.mining_margin,
        formula.skip_easy_anchors,
        formula.positive_weight,
        formula.variance_weight,
        formula.target_mix,
        formula.variance_sum,
        learns and rows.requires_grad,
        learns and columns is not None and columns.requires_grad,
    )
    positive, negative, variance = parts.detach().unbind()
    return LossTerms(positive, negative, variance, total)


class PairLoss(MetricLoss):
    """A loss that is a `Formula` over all pairs."""

    smallest_batch = (2, 2)

    def formula(self) -> Formula:
        """What to compute. Asked for at each call, so that an option can change between steps."""
        raise NotImplementedError

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """L for one batch."""
        return self.terms(embeddings, labels, indices_tuple, ref_emb, ref_labels).total

    def terms(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> LossTerms:
        """L_P, L_N, L_2 (also where λ = 0) and L for one batch, at the price of the loss alone.

        Args:
            embeddings: One row per image; their direction counts, not their length. (B, D)
            labels: One integer per row. (B,)
            indices_tuple: Pairs (a, p, a, n) or triplets (a, p, n) that make up P_i and N_i.
            ref_emb: Embeddings to compare with instead of the batch itself. (R, D)
            ref_labels: Labels of `ref_emb`. (R,)
        """
        return compute_terms(embeddings, labels, indices_tuple, ref_emb, ref_labels, self.formula())


def _evaluate(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    positives: Tensor | None,
    negatives: Tensor | None,
    exponents: Sequence[float],
    averaging: str,
    delta: float,
    delta_rule: str,
    mining_margin: float | None,
    skip_easy_anchors: bool,
    positive_weight: float,
    variance_weight: float,
    target_mix: float,
    variance_sum: bool,
    wants_rows: bool,
    wants_columns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The total, the three parts, and the gradients of the total: value and gradient in one pass.

    An operator takes plain values only, so the formula arrives in pieces. A gradient that nobody
    wants is an empty tensor.
    """
    # Words were checked when the loss was made.
    words: Averaging = averaging  # type: ignore[assignment]
    rule: Literal["derived", "mean"] = delta_rule  # type: ignore[assignment]
    formula = Formula(
        ratio=(Exponent(*exponents[:3]), Exponent(*exponents[3:])) if exponents else None,
        averaging=words,
        delta=rule or delta,
        mining_margin=mining_margin,
        skip_easy_anchors=skip_easy_anchors,
        positive_weight=positive_weight,
        variance_weight=variance_weight,
        target_mix=target_mix,
        variance_sum=variance_sum,
    )
    with torch.autocast(rows.device.type, enabled=False):
        unit, lengths = unit_rows(rows, "embeddings")
        others, other_lengths = unit, lengths
        if columns is not None:
            others, other_lengths = unit_rows(columns, "ref_emb")
        if len(unit) == 0 or len(others) == 0:
            sums = _no_pairs(rows, columns, formula)
        else:
            pairs: LabelPairs | ListedPairs = LabelPairs(row_labels, column_labels)
            if positives is not None and negatives is not None:
                shape = (len(unit), len(others))
                check_range(positives, negatives, *shape)
                pairs = ListedPairs((*positives, *negatives), shape, unit.device)
            wanted = (wants_rows, wants_columns)
            sums = pair_terms(unit, None if columns is None else others, pairs, formula, wanted)
        count = max(1, len(unit))
        parts = torch.stack((sums.positive, sums.negative, sums.variance)) / count
        return (
            positive_weight * parts[0] + parts[1] + variance_weight * parts[2],
            parts,
            _through_lengths(sums.grad_rows, unit, lengths * count, rows),
            _through_lengths(sums.grad_columns, others, other_lengths * count, rows),
        )


def _fake(rows: Tensor, columns: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    """What `_evaluate` gives, in shape and type alone."""
    wants_rows, wants_columns = rest[-2:]
    return (
        rows.new_empty(()),
        rows.new_empty(3),
        rows.new_empty(rows.shape if wants_rows else 0),
        rows.new_empty(columns.shape if columns is not None and wants_columns else 0),
    )


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], *output[2:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros of (B, D) for outputs without a gradient
    ctx.others = len(inputs) - 2


def _hand_out_gradients(ctx: Any, scale: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
    rows, columns, grad_rows, grad_columns = ctx.saved_tensors
    found = [
        _DifferentiatedOnce.apply(grad * scale, matrix) if needed and scale is not None else None
        for grad, matrix, needed in (
            (grad_rows, rows, ctx.needs_input_grad[0]),
            (grad_columns, columns, ctx.needs_input_grad[1]),
        )
    ]
    return (*found, *[None] * ctx.others)


class _Terms(torch.autograd.Function):
    """`_evaluate` with its gradient, for every day: a call costs less than the operator's."""

    forward = staticmethod(_evaluate)
    setup_context = staticmethod(_keep_gradients)
    backward = staticmethod(_hand_out_gradients)


_operator = torch.library.custom_op("cbml::terms", _evaluate, mutates_args=())
_operator.register_fake(_fake)
_operator.register_autograd(_hand_out_gradients, setup_context=_keep_gradients)


class _DifferentiatedOnce(torch.autograd.Function):
    """The gradient, as a function of the embeddings whose own derivative nobody has derived."""

    @staticmethod
    def forward(grad: Tensor, matrix: Tensor) -> Tensor:
        del matrix  # an argument, so that a second derivative by it comes here
        return grad.view_as(grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Nothing is kept: there is no second derivative to compute."""

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


def _through_lengths(grad: Tensor | None, unit: Tensor, lengths: Tensor, like: Tensor) -> Tensor:
    """The gradient of the embeddings from that of their unit vectors; empty where there is none."""
    if grad is None:
        return like.new_empty(0)
    along = (grad * unit).sum(dim=1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1.0).div_(lengths)
