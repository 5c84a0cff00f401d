"""Histograms of the similarities of all pairs, block by block, and how Gaussian they are."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from cbml.bayes.log_odds import MonotoneCurve
from cbml.bayes.pairs import Embeddings, Pairs, pair_up
from cbml.query_gallery import Labels, Matrix, QueryGallery

# Numbers of a block of similarities: 2**22 float32 numbers are 16 MiB, and as many places 16 more.
BLOCK_SIZE = 2**22
SMALLEST_STD = 1e-6
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class GaussianFit:
    """How well a Gaussian with the mean and spread of some similarities describes them.

    Args:
        distance: Kolmogorov-Smirnov: the largest gap between the two distribution functions.
        log_likelihood: of a pair under the Gaussian, in nats.
        best_log_likelihood: of a pair under the histogram itself; no density reaches more.
    """

    distance: float
    log_likelihood: float
    best_log_likelihood: float


@dataclass(frozen=True)
class PairHistogram:
    """How many positive and negative pairs fall into each step of similarity between -1 and 1.

    Args:
        positive: pairs of one class in each step. (B,)
        negative: pairs of two classes. (B,)
    """

    positive: Counts = field(repr=False)
    negative: Counts = field(repr=False)

    @classmethod
    def of(
        cls,
        embeddings: Matrix | QueryGallery,
        labels: Labels | None = None,
        *,
        gallery_embeddings: Matrix | None = None,
        gallery_labels: Labels | None = None,
        bins: int = 2000,
    ) -> "PairHistogram":
        """Count all pairs; each block of similarities is forgotten once it is counted.

        Args:
            embeddings: one row per image, of any length but zero. (N, D)
            labels: integers or strings, one per row. (N,)
            gallery_embeddings: the other side of each pair, where it is not the same set. (M, D)
            gallery_labels: one per row of the gallery. (M,)
            bins: steps of equal width, B.
        """
        if bins < 1:
            raise ValueError(f"bins must be at least 1, got {bins}")
        sides = QueryGallery.of(
            embeddings,
            labels,
            gallery_embeddings=gallery_embeddings,
            gallery_labels=gallery_labels,
        )
        pairs = pair_up(sides)
        total, positive = np.zeros(bins, dtype=np.int64), np.zeros(bins, dtype=np.int64)
        for start, stop, places in _blocks(pairs, bins):
            total += np.bincount(places.ravel(), minlength=bins + 1)[:bins]
            for part in _positive_parts(pairs, start, stop, places):
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
            bins: a divisor of the number of steps.
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
            mean: of them.
            std: their standard deviation; float32 numbers resolve no less than a millionth.
            positive: which kind.
        """
        std = max(std, SMALLEST_STD)
        counts = self.positive if positive else self.negative
        share, width = counts / counts.sum(), 2.0 / len(counts)
        # A Gaussian that is narrower than a step rises between two edges: look there as well.
        places = np.append(self.edges, mean + std * np.linspace(-4.0, 4.0, 81))
        seen = np.interp(places, self.edges, np.append(0.0, np.cumsum(share)))
        square = float((share * ((self.centers - mean) ** 2 + width**2 / 12.0)).sum())
        density = share[share > 0] / width
        return GaussianFit(
            distance=float(np.abs(seen - ndtr((places - mean) / std)).max()),
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
        places = _steps(pairs.left[start:stop], pairs.right[offset:], bins)
        if pairs.own:
            places[np.tril_indices(stop - start)] = bins
        yield start, stop, places


def _steps(left: Embeddings, right: Embeddings, bins: int) -> NDArray[np.int32]:
    similarity = left @ right.T
    similarity += 1.0
    similarity *= bins / 2.0
    return np.clip(similarity, 0, bins - 1, out=similarity).astype(np.int32)


def _positive_parts(
    pairs: Pairs, start: int, stop: int, places: NDArray[np.int32]
) -> Iterator[NDArray[np.int32]]:
    """The rectangles of a block that hold the pairs of one class."""
    offset = start if pairs.own else 0
    first = int(np.searchsorted(pairs.ranges[:, 1], start, side="right"))
    for begin, end, right_begin, right_end in pairs.ranges[first:].tolist():
        if begin >= stop:
            return
        rows = slice(max(begin, start) - start, min(end, stop) - start)
        yield places[rows, max(right_begin - offset, 0) : right_end - offset]
