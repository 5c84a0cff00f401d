"""How many right pictures a search can find, and where the crowd behind them begins."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Expected", "crowd_ranks", "enough_to_learn"]

# The crowd of a query: so many results, the first of them behind nearly all that can be right.
CROWD = 10
SPARE = 1.5
# No list is looked at farther than this: classes may have any number of pictures.
DEEPEST = 1000
# What a gallery with labels must have to teach its own weights.
ENOUGH_PICTURES, ENOUGH_CLASSES = 200, 5

Sizes = NDArray[np.int64]


class Expected(NamedTuple):
    """What a query can expect to find in a set.

    Args:
        positives: R, the number of right pictures.
        own_positives: R for a query that is one of the set's pictures, and left out.
        crowd: begin and end of the ranks of the crowd.
    """

    positives: float
    own_positives: float
    crowd: tuple[int, int]

    @classmethod
    def of_classes(cls, sizes: Sizes) -> "Expected":
        """For queries of the classes of a set, the more often the larger the class.

            R = Σ n_c² / N,  and  Σ n_c (n_c - 1) / N  for the set's own pictures

        Args:
            sizes: pictures of each class, n_c. (C,)
        """
        pictures = int(sizes.sum())
        others = np.repeat(sizes - 1, sizes)
        return cls(
            positives=float(np.square(sizes).sum() / pictures),
            # Where no two pictures share a class, almost nothing is right.
            own_positives=max(float(others.mean()), 1.0 / pictures),
            crowd=crowd_ranks(others, pictures - 1),
        )

    @classmethod
    def of_number(cls, positives: float, pictures: int) -> "Expected":
        """For queries that can all expect the same.

        Args:
            positives: R.
            pictures: that are searched.
        """
        if not (math.isfinite(positives) and positives > 0.0):
            raise ValueError(f"positives must be a finite number above zero, got {positives}")
        return cls(positives, positives, crowd_ranks(np.array([positives]), pictures - 1))


def crowd_ranks(positives: NDArray[Any], pictures: int) -> tuple[int, int]:
    """Begin and end of the ranks whose mean similarity is a query's background.

    Args:
        positives: how many right results there are for each query. (Q,)
        pictures: that a search can find.
    """
    first = int(np.ceil(SPARE * np.percentile(positives, 90)))
    first = min(max(first, CROWD), DEEPEST)
    if pictures < first + CROWD:  # a small set: the farther half of it
        return min(first, pictures // 2), pictures
    return first, first + CROWD


def enough_to_learn(sizes: Sizes) -> bool:
    """Whether a gallery's classes give enough right results to learn from.

    Args:
        sizes: pictures of each class. (C,)
    """
    shared = sizes[sizes > 1]
    return bool(shared.sum() >= ENOUGH_PICTURES and len(shared) >= ENOUGH_CLASSES)
