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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from cbml.bayes.calibration import MonotoneCurve
from cbml.errors import BadData
from cbml.query_gallery import Labels, Matrix, QueryGallery

Embeddings = NDArray[np.float32]
Indices = NDArray[np.int64]
# Embeddings that are widened to float64 at a time: 8 MB at 512 dimensions.
BLOCK = 2048


class Pairs(NamedTuple):
    """Embeddings on the left and on the right, both ascending by class, so that classes are ranges.

    In a set of its own both sides are the same rows, a pair counts once, and no row is a pair with
    itself; that is decided by the row's place, so that true duplicates are pairs.

    Args:
        left: Unit rows. (N, D)
        right: Unit rows; the same array in a set of its own. (M, D)
        ranges: Begin and end on the left, begin and end on the right, of each class that both sides
            have. (C, 4)
        own: Whether this is a set of its own.
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


def pair_up(query_gallery: QueryGallery) -> Pairs:
    """The pairs of a set, or of queries with a gallery; each kind of pair must exist.

    Args:
        query_gallery: Queries and gallery, in any order.
    """
    if query_gallery.self_indices is not None and (query_gallery.self_indices >= 0).any():
        raise ValueError("pairs: queries that are in their gallery are one set; give that alone")
    ordered, _ = query_gallery.sorted_by_class()
    ranges = _ranges(ordered.codes, ordered.searched_codes)
    pairs = Pairs(ordered.embeddings, ordered.searched, ranges, own=ordered.searches_itself)
    _check_counts(pairs)
    return pairs


def _ranges(codes: NDArray[Any], other_codes: NDArray[Any]) -> Indices:
    common = np.intersect1d(codes, other_codes)
    query_gallery = [
        np.searchsorted(side, common, where)
        for side in (codes, other_codes)
        for where in ("left", "right")
    ]
    return np.stack(query_gallery, axis=1)


def _check_counts(pairs: Pairs) -> None:
    positive, negative = pairs.counts
    if not positive:
        raise BadData("labels: no two images share a class, so no pair is positive")
    if not negative:
        raise BadData("labels: all images are of one class, so no pair is negative")


class Moments(NamedTuple):
    """Number, mean and standard deviation of similarities."""

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
    """Moments of the positive and of the negative pairs."""
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


# Histograms of the similarities of all pairs, block by block, and how Gaussian they are.

# Numbers of a block of similarities: 2**22 float32 numbers are 16 MiB, and as many places 16 more.
BLOCK_SIZE = 2**22
# Similarities are float32 numbers: what spreads less than this does not spread at all.
SMALLEST_STD = 1e-6
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class GaussianFit:
    """How well a Gaussian with the mean and spread of some similarities describes them.

    Args:
        distance: Kolmogorov-Smirnov: the largest gap between the two distribution functions.
        log_likelihood: Log likelihood of a pair under the Gaussian, in nats.
        best_log_likelihood: The same under the histogram itself; no density reaches more.
    """

    distance: float
    log_likelihood: float
    best_log_likelihood: float


@dataclass(frozen=True)
class PairHistogram:
    """How many positive and negative pairs fall into each step of similarity between -1 and 1.

    Args:
        positive: Pairs of one class in each step. (B,)
        negative: Pairs of two classes. (B,)
    """

    positive: Counts = field(repr=False)
    negative: Counts = field(repr=False)

    @classmethod
    def of(
        cls,
        embeddings: Matrix | QueryGallery,
        labels: Labels | None = None,
        *,
        bins: int = 2000,
    ) -> "PairHistogram":
        """Count all pairs; each block of similarities is forgotten once it is counted.

        Args:
            embeddings: One row per image, of any length but zero, or a `QueryGallery`. (N, D)
            labels: Integers or strings, one per row. (N,)
            bins: Steps of equal width, B.
        """
        if bins < 1:
            raise ValueError(f"bins must be at least 1, got {bins}")
        pairs = pair_up(QueryGallery.of(embeddings, labels))
        total, positive = np.zeros(bins, dtype=np.int64), np.zeros(bins, dtype=np.int64)
        for start, stop, indices in _blocks(pairs, bins):
            total += np.bincount(indices.ravel(), minlength=bins + 1)[:bins]
            for part in _positive_parts(pairs, start, stop, indices):
                positive += np.bincount(part.ravel(), minlength=bins + 1)[:bins]
        return cls(positive, total - positive)

    @property
    def edges(self) -> NDArray[np.float64]:
        """Of the steps, (B + 1,)."""
        return np.linspace(-1.0, 1.0, len(self.positive) + 1)

    @property
    def centers(self) -> NDArray[np.float64]:
        """Of the steps, (B,)."""
        return (self.edges[1:] + self.edges[:-1]) / 2.0

    def coarser(self, bins: int) -> "PairHistogram":
        """The same pairs in fewer steps.

        Args:
            bins: A divisor of the number of steps.
        """
        steps = len(self.positive)
        if bins < 1 or steps % bins:
            raise ValueError(f"bins must divide the {steps} steps there are, got {bins}")
        shape = (bins, steps // bins)
        return PairHistogram(
            self.positive.reshape(shape).sum(axis=1), self.negative.reshape(shape).sum(axis=1)
        )

    def gaussian_fit(self, mean: float, std: float, *, positive: bool) -> GaussianFit:
        """How Gaussian the similarities of one kind of pairs are.

        Within a step, pairs count as evenly spread, since their places are not known. So a spread
        far below a step (0.001 with 2,000 of them) is never called Gaussian: it cannot be told.

        Args:
            mean: Mean of the pairs of this kind.
            std: Their standard deviation; float32 numbers resolve no less than a millionth.
            positive: Whether to describe the positive pairs or the negative ones.
        """
        std = max(std, SMALLEST_STD)
        counts = self.positive if positive else self.negative
        share, width = counts / counts.sum(), 2.0 / len(counts)
        # A Gaussian that is narrower than a step rises between two edges: look there as well.
        indices = np.append(self.edges, mean + std * np.linspace(-4.0, 4.0, 81))
        seen = np.interp(indices, self.edges, np.append(0.0, np.cumsum(share)))
        square = float((share * ((self.centers - mean) ** 2 + width**2 / 12.0)).sum())
        density = share[share > 0] / width
        return GaussianFit(
            distance=float(np.abs(seen - ndtr((indices - mean) / std)).max()),
            log_likelihood=-math.log(std * math.sqrt(2.0 * math.pi)) - square / (2.0 * std**2),
            best_log_likelihood=float((share[share > 0] * np.log(density)).sum()),
        )

    def posterior_curve(self) -> MonotoneCurve:
        """Log odds of a pair to be positive by its similarity, without assuming Gaussians."""
        return MonotoneCurve.of(self.centers, self.positive, self.negative)


def _blocks(pairs: Pairs, bins: int) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
    """First and end row on the left, and the step of each pair with the right; `bins` for none.

    In a set of its own a block reaches from its first row on to the right, and pairs that were
    counted already, and self pairs, are in no step.
    """
    height = max(1, min(1024, BLOCK_SIZE // len(pairs.right)))
    for start in range(0, len(pairs.left), height):
        stop = min(start + height, len(pairs.left))
        offset = start if pairs.own else 0
        indices = _steps(pairs.left[start:stop], pairs.right[offset:], bins)
        if pairs.own:
            indices[np.tril_indices(stop - start)] = bins
        yield start, stop, indices


def _steps(left: Embeddings, right: Embeddings, bins: int) -> NDArray[np.int32]:
    similarity = left @ right.T
    similarity += 1.0
    similarity *= bins / 2.0
    return np.clip(similarity, 0, bins - 1, out=similarity).astype(np.int32)


def _positive_parts(
    pairs: Pairs, start: int, stop: int, indices: NDArray[np.int32]
) -> Iterator[NDArray[np.int32]]:
    """The rectangles of a block that hold the pairs of one class."""
    offset = start if pairs.own else 0
    first = int(np.searchsorted(pairs.ranges[:, 1], start, side="right"))
    for begin, end, right_begin, right_end in pairs.ranges[first:].tolist():
        if begin >= stop:
            return
        rows = slice(max(begin, start) - start, min(end, stop) - start)
        yield indices[rows, max(right_begin - offset, 0) : right_end - offset]
