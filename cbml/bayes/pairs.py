"""All pairs of one set, or of queries with a gallery, and their moments, without forming them.

With X the embeddings of one side and Y those of the other, over all of both:

    Σ s   = (Σ x) · (Σ y)
    Σ s²  = ||X Yᵀ||² = ⟨XᵀX, YᵀY⟩

The first form of Σ s² costs N·M·D, the second (N + M)·D²; the cheaper one is taken, for the whole
set and for each class. Negative pairs are all pairs less the positive ones, and self pairs are
taken off by the lengths of their rows. Sums are float64.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData
from cbml.query_gallery import QueryGallery

Embeddings = NDArray[np.float32]
Indices = NDArray[np.int64]
# Embeddings that are widened to float64 at a time: 8 MB at 512 dimensions.
BLOCK = 2048


class Pairs(NamedTuple):
    """Embeddings on the left and on the right, both ascending by class, so that classes are ranges.

    In a set of its own both sides are the same rows, a pair counts once, and no row is a pair with
    itself; that is decided by the row's place, so that true duplicates are pairs.

    Args:
        left: unit rows. (N, D)
        right: unit rows; the same array in a set of its own. (M, D)
        ranges: begin and end on the left, begin and end on the right, of each class that both
            sides have. (C, 4)
        own: whether this is a set of its own.
    """

    left: Embeddings
    right: Embeddings
    ranges: Indices
    own: bool

    @property
    def counts(self) -> tuple[int, int]:
        """How many positive and how many negative pairs there are."""
        heights, widths = (
            self.ranges[:, 1] - self.ranges[:, 0],
            self.ranges[:, 3] - self.ranges[:, 2],
        )
        positive, total = int((heights * widths).sum()), len(self.left) * len(self.right)
        if self.own:
            rows = len(self.left)
            positive, total = (positive - rows) // 2, rows * (rows - 1) // 2
        return positive, total - positive

    def classes(self) -> Iterator[tuple[Embeddings, Embeddings]]:
        """The rows of each class on both sides."""
        for begin, end, right_begin, right_end in self.ranges.tolist():
            left = self.left[begin:end]
            yield left, left if self.own else self.right[right_begin:right_end]


def pair_up(sides: QueryGallery) -> Pairs:
    """The pairs of a set, or of queries with a gallery; each kind of pair must exist.

    Args:
        sides: in any order.
    """
    if sides.self_indices is not None and (sides.self_indices >= 0).any():
        raise ValueError("pairs: queries that are in their gallery are one set; give that alone")
    ordered, _ = sides.sorted_by_class()
    ranges = _ranges(ordered.codes, ordered.searched_codes)
    pairs = Pairs(ordered.embeddings, ordered.searched, ranges, own=ordered.searches_itself)
    _check_counts(pairs)
    return pairs


def _ranges(codes: NDArray[Any], other_codes: NDArray[Any]) -> Indices:
    common = np.intersect1d(codes, other_codes)
    sides = [
        np.searchsorted(side, common, where)
        for side in (codes, other_codes)
        for where in ("left", "right")
    ]
    return np.stack(sides, axis=1)


def _check_counts(pairs: Pairs) -> None:
    positive, negative = pairs.counts
    if not positive:
        raise BadData("labels: no two images share a class, so that no pair is positive")
    if not negative:
        raise BadData("labels: all images are of one class, so that no pair is negative")


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


def _sums(left: Embeddings, right: Embeddings) -> _Sums:
    """Σ s and Σ s² over all pairs of a left with a right row, self pairs included."""
    if len(left) * len(right) <= (len(left) + len(right)) * left.shape[1]:
        return _by_pairs(left, right)
    sum_left, gram_left = _gram(left)
    sum_right, gram_right = (sum_left, gram_left) if left is right else _gram(right)
    return _Sums(float(sum_left @ sum_right), float(np.vdot(gram_left, gram_right)))


def _by_pairs(left: Embeddings, right: Embeddings) -> _Sums:
    first = second = 0.0
    for start in range(0, len(left), BLOCK):
        wide = left[start : start + BLOCK].astype(np.float64)
        for other in range(0, len(right), BLOCK):
            similarity = wide @ right[other : other + BLOCK].astype(np.float64).T
            first += float(similarity.sum())
            second += float(np.vdot(similarity, similarity))
    return _Sums(first, second)


def _gram(rows: Embeddings) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    total, gram = np.zeros(rows.shape[1]), np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].astype(np.float64)
        total += block.sum(axis=0)
        gram += block.T @ block
    return total, gram


def _self_sums(rows: Embeddings) -> _Sums:
    lengths = np.concatenate(
        [
            np.square(rows[start : start + BLOCK].astype(np.float64)).sum(axis=1)
            for start in range(0, len(rows), BLOCK)
        ]
    )
    return _Sums(float(lengths.sum()), float(np.square(lengths).sum()))
