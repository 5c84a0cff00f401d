"""All pairs of one set, or of queries with a gallery, without forming them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData
from cbml.index.inputs import Labels, Matrix, as_matrix, read_sides, unit_rows

__all__ = ["Pairs", "pair_up", "unit"]

Rows = NDArray[np.float32]
Whole = NDArray[np.int64]


class Pairs(NamedTuple):
    """Rows on the left and on the right, both ascending by class, so that classes are ranges.

    In a set of its own both sides are the same rows, a pair counts once, and no row is a pair with
    itself; that is decided by the row's place, so that true duplicates are pairs.

    Args:
        left: unit rows. (N, D)
        right: unit rows; the same array in a set of its own. (M, D)
        ranges: begin and end on the left, begin and end on the right, of each class that both
            sides have. (C, 4)
        own: whether this is a set of its own.
    """

    left: Rows
    right: Rows
    ranges: Whole
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

    def classes(self) -> Iterator[tuple[Rows, Rows]]:
        """The rows of each class on both sides."""
        for begin, end, right_begin, right_end in self.ranges.tolist():
            left = self.left[begin:end]
            yield left, left if self.own else self.right[right_begin:right_end]


def pair_up(
    embeddings: Matrix,
    labels: Labels,
    gallery_embeddings: Matrix | None = None,
    gallery_labels: Labels | None = None,
) -> Pairs:
    """The pairs of embeddings; refused where there are no positive or no negative ones.

    Args:
        embeddings: one row per picture, of any length but zero. (N, D)
        labels: integers or strings, one per row. (N,)
        gallery_embeddings: the other side of each pair, where it is not the same set. (M, D)
        gallery_labels: one per row of the gallery. (M,)
    """
    asking, answering = read_sides(embeddings, labels, gallery_embeddings, gallery_labels)
    left, codes = _sorted(*asking, "embeddings")
    if answering is None:
        pairs = Pairs(left, left, _ranges(codes, codes), own=True)
    else:
        right, other_codes = _sorted(*answering, "gallery_embeddings")
        pairs = Pairs(left, right, _ranges(codes, other_codes), own=False)
    _check_counts(pairs)
    return pairs


def unit(embeddings: Matrix, name: str) -> Rows:
    """The rows in their order, divided by their length. (N, D)

    Args:
        embeddings: one row per picture. (N, D)
        name: the argument's name, for the error.
    """
    matrix = as_matrix(embeddings, name)
    return unit_rows(matrix, np.arange(len(matrix)), name).numpy()


def _sorted(matrix: NDArray[Any], names: NDArray[Any], name: str) -> tuple[Rows, NDArray[Any]]:
    order = np.argsort(names, kind="stable")
    return unit_rows(matrix, order, name).numpy(), names[order]


def _ranges(codes: NDArray[Any], other_codes: NDArray[Any]) -> Whole:
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
        raise BadData("labels: no two pictures share a class, so that no pair is positive")
    if not negative:
        raise BadData("labels: all pictures are of one class, so that no pair is negative")
