"""The CBML terms of all pairs and their gradient, in one pass over tiles of rows.

Autograd through a dozen masked B × R matrices is what makes pair losses slow and large. Here the
gradient is derived by hand and computed together with the value, a tile of rows at a time, while
the tile is in the processor's cache; only the gradient of the embeddings is kept.

With s_ij the similarity of anchor i and reference j, P_i and N_i its positives and negatives, and
P*_i and N*_i the hard ones among them:

    a_ij = log δ_i + log Φ(s_ij)                       the exponents
    u_i  = log(1 + Σ_j exp a_ij)                       over P*_i for L_P, over N*_i for L_N
    L_i  = f(exp u_i)                                  f = log, sqrt or x
    ∂L_i/∂s_ij = ∂L_i/∂u_i · exp(a_ij - u_i) · ∂log Φ/∂s_ij

    L_2i = mean_{n∈N_i} (s_in - ξ_i)² = Var_N + γ² (m_P - m_N)²
    ∂L_2i/∂s_ij = 2/|N_i| (s_ij - m_N - γ² (m_P - m_N))    for negatives
                = 2/|P_i| γ² (m_P - m_N)                    for positives

Positives are few: they are taken out of a tile, (T, K), and everything that concerns them happens
there, while the full tile, (T, R), sees negatives only.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from cbml.losses.options import Averaging
from cbml.losses.pairs import LabelPairs, LabelTile, ListedPairs, MaskedTile
from cbml.losses.ratios import Exponent

# Rows of a tile, and the most similarities it may hold: 2**24 float32 numbers are 64 MiB, and two
# such buffers exist at a time.
TILE_ROWS = 256
TILE_SIZE = 2**24
# So many similarities are one tile, which stays in a processor's cache; of more, threads take
# a tile each.
_CACHED = 2**22
# More than so many threads find too few tiles; torch divides each operation among them instead.
_OWN_THREADS = 8
# A term exp(x) beside one that is at least exp(0) changes no digit of their sum below these x.
_NEGLIGIBLE = {torch.float32: -40.0, torch.float64: -300.0}
_LOG2_E = math.log2(math.e)

_ForEach: TypeAlias = Callable[[Callable[[Any], Any], list[Any]], list[Any]]


@dataclass(frozen=True, kw_only=True)
class Formula:
    """What to compute for each anchor: the arguments of `CBMLLoss` in the form the tiles use.

    Args:
        ratio: Log Φ_P and log Φ_N, or None to leave L_P and L_N out.
        averaging: f.
        delta: δ_P = δ_N; "derived" for |N|/|P|² and |P|/|N|², "mean" for 1/|P| and 1/|N|.
        mining_margin: ε, or None for all pairs.
        skip_easy_anchors: Leave out an anchor with an empty hard set.
        positive_weight: ω.
        variance_weight: λ.
        target_mix: γ.
        variance_sum: Sum over the negatives in L_2 instead of their mean.
    """

    ratio: tuple[Exponent, Exponent] | None = None
    averaging: Averaging = "log"
    delta: float | Literal["derived", "mean"] = 1.0
    mining_margin: float | None = None
    skip_easy_anchors: bool = False
    positive_weight: float = 1.0
    variance_weight: float = 1.0
    target_mix: float = 0.2
    variance_sum: bool = False


class PairSums(NamedTuple):
    """The sums over anchors of L_P, L_N and L_2, and the gradients of ω L_P + L_N + λ L_2.

    Args:
        positive: Σ L_P, without ω.
        negative: Σ L_N.
        variance: Σ L_2, without λ.
        grad_rows: For the unit vectors of the anchors. (B, D)
        grad_columns: For those of the references; None where they are the anchors. (R, D)
    """

    positive: Tensor
    negative: Tensor
    variance: Tensor
    grad_rows: Tensor | None
    grad_columns: Tensor | None


def pair_terms(
    rows: Tensor,
    columns: Tensor | None,
    pairs: LabelPairs | ListedPairs,
    formula: Formula,
    wants_grad: tuple[bool, bool],
) -> PairSums:
    """Sums of the terms over all anchors and the gradients for the unit vectors.

    Args:
        rows: Unit vectors of the anchors. (B, D)
        columns: Unit vectors of the references, or None for the anchors themselves. (R, D)
        wants_grad: Whether the gradients of rows and of columns are needed.
    """
    if columns is None and len(rows) ** 2 <= TILE_SIZE:
        return _terms_of_all(rows, pairs, formula, wants_grad[0])
    others = rows if columns is None else columns
    tile_rows = max(1, min(TILE_ROWS, TILE_SIZE // len(others)))
    grad_rows = torch.zeros_like(rows) if wants_grad[0] else None
    grad_columns = torch.zeros_like(columns) if columns is not None and wants_grad[1] else None
    totals = rows.new_zeros(3)
    buffers = rows.new_empty(2, min(tile_rows, len(rows)), len(others))
    for tile in pairs.tiles(tile_rows):
        height = tile.rows.stop - tile.rows.start
        work = _Work(tile, buffers[0, :height], buffers[1, :height], formula)
        torch.mm(rows[tile.rows], others.T, out=work.similarity)
        totals += work.terms()
        if not any(wants_grad):
            continue
        gradient = work.gradient()  # (T, R)
        if grad_rows is not None:
            grad_rows[tile.rows].addmm_(gradient, others)
        # A self pair (i, j) moves both of its ends.
        moved = grad_rows if columns is None else grad_columns
        if moved is not None:
            moved.addmm_(gradient.T, rows[tile.rows])
    positive, negative, variance = totals.unbind()
    return PairSums(positive, negative, variance, grad_rows, grad_columns)


def _terms_of_all(
    rows: Tensor, pairs: LabelPairs | ListedPairs, formula: Formula, wants_grad: bool
) -> PairSums:
    """`pair_terms` of a batch with itself, where the similarities of all pairs fit in memory.

    Half of them are computed, the others mirrored. With G the gradient of all similarities, that of
    the unit vectors is (G + Gᵀ) U, one product where tiles that come and go need two.
    """
    size, rows = len(rows), rows.detach()
    is_large = rows.device.type == "cpu" and size**2 > _CACHED
    height, threads = (TILE_ROWS, torch.get_num_threads()) if is_large else (size, 1)
    if threads > _OWN_THREADS:
        threads = 1
    # A row takes an odd number of cache lines: a power of two would put a whole column into a few
    # places of the cache, and transposing would take four times as long.
    matrix = rows.new_empty(size, 16 * (-(-size // 16) | 1))[:, :size]  # the similarities, then G
    gradient = torch.empty_like(rows)
    spares = [rows.new_empty(height, size) for _ in range(threads)]  # each thread takes one

    def compare(part: slice) -> None:
        """Similarities of some rows with themselves and all below, and their mirror images."""
        torch.mm(rows[part], rows[part.start :].T, out=matrix[part, part.start :])
        matrix[part.stop :, part] = matrix[part, part.stop :].T

    def terms(tile: LabelTile | MaskedTile) -> Tensor:
        """The sums of a tile; leaves G in place of its similarities."""
        spare, own = spares.pop(), matrix[tile.rows]
        work = _Work(tile, own, spare[: len(own)], formula)
        sums = work.terms()
        if wants_grad:
            work.gradient()
        spares.append(spare)
        return sums

    def multiply(part: slice) -> None:
        """Some rows of (G + Gᵀ) U."""
        spare, own = spares.pop(), matrix[part]
        both = torch.add(own, matrix[:, part].T, out=spare[: len(own)])
        torch.mm(both, rows, out=gradient[part])
        spares.append(spare)

    with _threads(threads) as for_each:
        for_each(compare, _parts(size, max(TILE_ROWS, size // 8)))
        totals = torch.stack(for_each(terms, list(pairs.tiles(height)))).sum(dim=0)
        if wants_grad:
            for_each(multiply, _parts(size, height))
    positive, negative, variance = totals.unbind()
    return PairSums(positive, negative, variance, gradient if wants_grad else None, None)


def _parts(size: int, height: int) -> list[slice]:
    return [slice(start, min(start + height, size)) for start in range(0, size, height)]


@contextlib.contextmanager
def _threads(count: int) -> Iterator[_ForEach]:
    """A map over items by threads that compute alone and take the next item when they are done.

    When torch divides each operation among its threads, they wait for each other at the end of
    each, and where other programs are busy, for those. These wait at the end of all.
    """
    if count == 1:
        yield lambda work, items: [work(item) for item in items]
        return
    all_alone, inference = threading.Barrier(count + 1), torch.is_inference_mode_enabled()

    def begin() -> None:
        torch.set_num_threads(1)
        all_alone.wait()

    def for_each(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        def in_mode(item: Any) -> Any:
            with torch.inference_mode(inference):
                return work(item)

        return list(pool.map(in_mode, items))

    with ThreadPoolExecutor(count, initializer=begin) as pool:
        try:
            for _ in range(count):
                pool.submit(int)  # starts a thread, since none before it is through the barrier
            all_alone.wait()
            torch.set_num_threads(count)  # torch takes a thread's for that of threads to come
            yield for_each
        finally:
            all_alone.abort()  # nobody waits for a thread that could not start


class _Work:
    """The terms of one tile, then their gradient, in two buffers that are used again and again.

    Selecting by mask is slow on a processor, and so are exponentials that vanish into subnormal
    numbers. The full tile is therefore touched by plain arithmetic only.
    """

    def __init__(
        self,
        tile: LabelTile | MaskedTile,
        similarity: Tensor,
        exponentials: Tensor,
        formula: Formula,
    ) -> None:
        self.tile, self.formula = tile, formula
        self.similarity = similarity  # (T, R): s, then s - m_N, then ∂/∂s
        self.exponentials = exponentials  # (T, R): exp(a - shift - cut) of the negatives

    def terms(self) -> Tensor:
        """Sums of L_P, L_N and L_2 over the tile's anchors, (3,)."""
        formula, tile = self.formula, self.tile
        self.positives = tile.take(self.similarity)  # (T, K)
        variance = self._center_on_negatives()  # (T, 1)
        # From here on no maximum, comparison or exponential sees what is not a negative.
        tile.blank(self.similarity, -torch.inf)
        self.keep: Tensor | float = 1.0  # (T, 1), zero for anchors that are left out
        if formula.ratio is None:
            zero = torch.zeros_like(variance)
            return torch.cat((zero, zero, variance), dim=1).sum(dim=0)
        hardest_negative = self.similarity.amax(dim=1, keepdim=True)  # above m_N; -inf for none
        hard, threshold = tile.positive, torch.full_like(hardest_negative, -torch.inf)
        if formula.mining_margin is not None:
            hardest_positive = self.positives.masked_fill(~tile.positive, torch.inf).amin(
                dim=1, keepdim=True
            )
            threshold = hardest_positive - self.negative_mean - formula.mining_margin
            easy_above = hardest_negative + self.negative_mean + formula.mining_margin
            hard = hard & (self.positives < easy_above)
        positive_value = self._positive_term(hard, formula.ratio[0])
        negative_value = self._negative_term(hardest_negative, threshold, formula.ratio[1])
        if formula.skip_easy_anchors:
            keep = hard.any(dim=1, keepdim=True) & (hardest_negative > threshold)
            self.keep = keep.to(variance.dtype)
        values = torch.cat((positive_value, negative_value, variance), dim=1)  # (T, 3)
        return (values * self.keep).sum(dim=0)

    def gradient(self) -> Tensor:
        """∂/∂s of the tile's terms, which takes the place of the similarities, (T, R)."""
        formula, tile = self.formula, self.tile
        strength = self.has_both_kinds * (2.0 * formula.variance_weight) * self.keep  # (T, 1)
        if not formula.variance_sum:
            strength = strength / self.negative_count
        toward_target = strength * formula.target_mix**2 * self.gap  # γ² (m_P - m_N)
        if formula.ratio is None:
            self.similarity.mul_(strength).sub_(toward_target)
        else:
            push = self._push_per_exponential(formula.ratio[1]) * self.keep
            if formula.variance_weight:
                self.similarity.mul_(strength).sub_(toward_target)
                self.similarity.addcmul_(self.exponentials, push)
            else:
                torch.mul(self.exponentials, push, out=self.similarity)
        tile.blank(self.similarity, 0.0)
        pull = self.is_positive * (toward_target * self.negative_count / self.positive_count)
        if formula.ratio is not None:
            quadratic, slope, _ = formula.ratio[0]
            steepness = (2.0 * quadratic) * self.positives + slope if quadratic else slope
            strength = self.pull_weight * self.keep * formula.positive_weight
            pull.addcmul_(self.pulls, strength * steepness)
        tile.add(self.similarity, pull)
        return self.similarity

    def _center_on_negatives(self) -> Tensor:
        """L_2 of each anchor, (T, 1); leaves s - m_N, so that no later difference loses digits."""
        formula, tile, kind = self.formula, self.tile, self.similarity.dtype
        self.is_positive = tile.positive.to(kind)  # (T, K)
        positives = self.is_positive.sum(dim=1, keepdim=True)
        negatives = tile.negative_count.to(kind)
        self.counts = (positives, negatives)
        self.has_both_kinds = (positives * negatives).clamp(max=1.0)  # 1 where there is a target ξ
        self.positive_count = positives.clamp(min=1.0)
        self.negative_count = negatives.clamp(min=1.0)
        tile.blank(self.similarity, 0.0)
        self.negative_mean = self.similarity.sum(dim=1, keepdim=True) / self.negative_count
        positive_sum = (self.positives * self.is_positive).sum(dim=1, keepdim=True)
        self.gap = (positive_sum / self.positive_count - self.negative_mean) * self.has_both_kinds
        self.similarity.sub_(self.negative_mean)
        tile.blank(self.similarity, 0.0)
        spread: Tensor = torch.linalg.vector_norm(self.similarity, dim=1, keepdim=True).square()
        about_target = spread + self.negative_count * (formula.target_mix * self.gap).square()
        if not formula.variance_sum:
            about_target = about_target / self.negative_count
        return about_target * self.has_both_kinds

    def _positive_term(self, hard: Tensor, exponent: Exponent) -> Tensor:
        """L_P of each anchor, (T, 1); leaves exp(a - shift) in `pulls`, (T, K)."""
        quadratic, slope, constant = exponent
        exponents = self.positives * slope + (constant + self._log_delta(0))
        if quadratic:
            exponents.addcmul_(self.positives, self.positives, value=quadratic)
        exponents.masked_fill_(~hard, -torch.inf)
        shift = exponents.amax(dim=1, keepdim=True).clamp(min=0.0)
        # Exponentials of -inf are slow, too: they are cut at a number and taken out behind it.
        least = 2.0 * _NEGLIGIBLE[exponents.dtype]
        self.pulls = exponents.sub_(shift).clamp_(min=least).exp_()
        torch.threshold_(self.pulls, 1.01 * math.exp(least), 0.0)
        value, self.pull_weight = self._average(shift, self.pulls.sum(dim=1, keepdim=True))
        return value

    def _negative_term(self, hardest: Tensor, threshold: Tensor, exponent: Exponent) -> Tensor:
        """L_N of each anchor, (T, 1); leaves exp(a - shift - cut) in `exponentials`."""
        quadratic, slope, constant = exponent
        mean, exponentials, similarity = self.negative_mean, self.exponentials, self.similarity
        # The exponent as a polynomial of s - m_N, which is what the tile holds now.
        base = slope * mean + (constant + self._log_delta(1))  # (T, 1)
        negligible = _NEGLIGIBLE[similarity.dtype]
        if quadratic or slope <= 0.0:
            base = base + quadratic * mean.square()
            self.slope_at_mean = 2.0 * quadratic * mean + slope  # (T, 1)
            torch.add(self.slope_at_mean, similarity, alpha=quadratic, out=exponentials)
            exponentials.mul_(similarity).add_(base)
            exponentials.masked_fill_(similarity <= threshold, -torch.inf)
            shift = exponentials.amax(dim=1, keepdim=True).clamp(min=0.0)
            cut = torch.full_like(shift, negligible)
            exponentials.sub_(shift + cut).clamp_(min=0.0).exp_()
        else:
            # The exponent rises with s: at most `least`, a pair is not hard or counts for nothing.
            shift = (slope * hardest + base).clamp(min=0.0)
            least = torch.maximum(threshold, (negligible + shift - base) / slope)
            # Where δ is zero or no positive sets a threshold, all is cut and any number will do.
            cut = (slope * least + base - shift).nan_to_num(nan=0.0).clamp(max=1.0)
            torch.sub(similarity, least, out=exponentials).clamp_(min=0.0)
            exponentials.mul_(slope * _LOG2_E).exp2_()  # a third of the time of exp
            shift = shift * (hardest > threshold)  # nothing to shift where none is hard
        torch.threshold_(exponentials, 1.0, 0.0)
        unit = torch.exp(cut)
        total = exponentials.sum(dim=1, keepdim=True) * unit
        value, weight = self._average(shift, total)
        self.push_weight = weight * unit
        return value

    def _push_per_exponential(self, exponent: Exponent) -> Tensor:
        """What multiplies `spare` in the gradient, (T, 1), after a quadratic's slope went in."""
        if not exponent.quadratic:
            return self.push_weight * exponent.slope
        self.exponentials.mul_(
            torch.add(self.slope_at_mean, self.similarity, alpha=2.0 * exponent.quadratic)
        )
        return self.push_weight

    def _log_delta(self, side: int) -> Tensor | float:
        """log δ of the positives (0) or negatives (1); -inf where the derived one is zero."""
        delta = self.formula.delta
        if not isinstance(delta, str):
            return math.log(delta)
        own = (self.positive_count, self.negative_count)[side]
        if delta == "mean":
            return -own.log()
        return self.counts[1 - side].log() - 2.0 * own.log()

    def _average(self, shift: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """f(1 + Σ exp a), and its derivative by a_ij divided by exp(a_ij - shift); (T, 1) each."""
        log_sum = shift + torch.log1p(total + torch.expm1(-shift))  # u
        if self.formula.averaging == "log":
            return log_sum, torch.exp(shift - log_sum)
        if self.formula.averaging == "sqrt":
            root = torch.exp(0.5 * log_sum)
            return root, 0.5 * torch.exp(shift) / root
        return torch.exp(log_sum), torch.exp(shift)
