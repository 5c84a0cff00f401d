"""Mean and variance of the similarities of all pairs, from Gram matrices instead of pairs.

With X the rows of one side and Y those of the other, over all rows of both:

    Σ s   = (Σ x) · (Σ y)
    Σ s²  = ||X Yᵀ||² = ⟨XᵀX, YᵀY⟩

The first form of Σ s² costs N·M·D, the second (N + M)·D²; the cheaper one is taken, for the whole
set and for each class. Negative pairs are all pairs less the positive ones, and self pairs are
taken off by the lengths of their rows. Sums are float64.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbml.bayes.pairs import Pairs, Rows

__all__ = ["Moments", "pair_moments"]

# Rows that are widened to float64 at a time: 8 MB at 512 dimensions.
BLOCK = 2048


class Moments(NamedTuple):
    """Number, mean and standard deviation of similarities.

    Args:
        pairs: how many there are.
        mean: of them.
        std: their standard deviation.
    """

    pairs: int
    mean: float
    std: float


class _Sums(NamedTuple):
    first: float
    second: float

    def less(self, other: "_Sums") -> "_Sums":
        return _Sums(self.first - other.first, self.second - other.second)

    def moments(self, count: int) -> Moments:
        mean = self.first / count
        return Moments(count, mean, math.sqrt(max(0.0, self.second / count - mean**2)))


def pair_moments(pairs: Pairs) -> tuple[Moments, Moments]:
    """Moments of the positive and of the negative pairs.

    Args:
        pairs: of one set, or of queries with a gallery.
    """
    positive_count, negative_count = pairs.counts
    total = _sums(pairs.left, pairs.right)
    parts = [_sums(left, right) for left, right in pairs.classes()]
    positive = _Sums(*(math.fsum(part) for part in zip(*parts, strict=True)))
    negative = total.less(positive)
    if pairs.own:
        # Both orders of a pair were summed, and each row with itself.
        positive = positive.less(_self_sums(pairs.left))
        positive, negative = (
            _Sums(sums.first / 2, sums.second / 2) for sums in (positive, negative)
        )
    return positive.moments(positive_count), negative.moments(negative_count)


def _sums(left: Rows, right: Rows) -> _Sums:
    """Σ s and Σ s² over all pairs of a left with a right row, self pairs included."""
    if len(left) * len(right) <= (len(left) + len(right)) * left.shape[1]:
        return _by_pairs(left, right)
    sum_left, gram_left = _gram(left)
    sum_right, gram_right = (sum_left, gram_left) if left is right else _gram(right)
    return _Sums(float(sum_left @ sum_right), float(np.vdot(gram_left, gram_right)))


def _by_pairs(left: Rows, right: Rows) -> _Sums:
    first = second = 0.0
    for start in range(0, len(left), BLOCK):
        wide = left[start : start + BLOCK].astype(np.float64)
        for other in range(0, len(right), BLOCK):
            similarity = wide @ right[other : other + BLOCK].astype(np.float64).T
            first += float(similarity.sum())
            second += float(np.vdot(similarity, similarity))
    return _Sums(first, second)


def _gram(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    total, gram = np.zeros(rows.shape[1]), np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].astype(np.float64)
        total += block.sum(axis=0)
        gram += block.T @ block
    return total, gram


def _self_sums(rows: Rows) -> _Sums:
    lengths = np.concatenate(
        [
            np.square(rows[start : start + BLOCK].astype(np.float64)).sum(axis=1)
            for start in range(0, len(rows), BLOCK)
        ]
    )
    return _Sums(float(lengths.sum()), float(np.square(lengths).sum()))
