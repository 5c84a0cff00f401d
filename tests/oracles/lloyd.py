"""Plain Lloyd in float64: every vector against every center, in every round."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def lloyd(
    rows: NDArray[Any], centers: NDArray[Any], iterations: int, spherical: bool
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Assignments and centers of the start and after each round."""
    nearest = _nearest(rows, centers, spherical)
    yield nearest, centers
    for _ in range(iterations):
        owns = centers[nearest]
        distances = [_distance(*pair, spherical) for pair in zip(rows, owns, strict=True)]
        farthest = sorted(range(len(rows)), key=lambda place: (-distances[place], place))
        moved = centers.copy()
        for cluster in range(len(centers)):
            members = rows[nearest == cluster].astype(np.float64)
            if not len(members):
                moved[cluster] = rows[farthest.pop(0)]
                continue
            mean = members.mean(axis=0)
            length = float(np.sqrt((mean**2).sum()))
            if not spherical:
                moved[cluster] = mean
            elif length > 0:
                moved[cluster] = mean / length
        centers = moved
        nearest = _nearest(rows, centers, spherical)
        yield nearest, centers


def _nearest(rows: NDArray[Any], centers: NDArray[Any], spherical: bool) -> NDArray[np.int64]:
    every = [[_distance(row, center, spherical) for center in centers] for row in rows]
    return np.array([distances.index(min(distances)) for distances in every])


def _distance(row: NDArray[Any], center: NDArray[Any], spherical: bool) -> float:
    """Squared, or minus the cosine."""
    row, center = row.astype(np.float64), center.astype(np.float64)
    return float(-(row * center).sum() if spherical else ((row - center) ** 2).sum())
