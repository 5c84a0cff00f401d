"""Groups of vectors around their means, by faiss, silent and repeatable."""

from dataclasses import dataclass, field

import faiss
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Vectors = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Centers, the center of each vector, and how they were found.

    Args:
        centers: One row per cluster; fewer than asked if fewer vectors are distinct. (K, D)
        assignments: The nearest center of each vector. (N,)
        sizes: Vectors of each cluster; with many duplicates a cluster can stay empty. (K,)
        objective: Mean squared distance of a vector to its center; the mean cosine when spherical.
        iterations: Iterations of each attempt.
        seed: Random seed of the first centers.
        attempts: Starts with different first centers, of which the best was kept.
        spherical: Centers are unit vectors and the nearest is the one with the largest cosine.
    """

    centers: Vectors = field(repr=False, compare=False)
    assignments: NDArray[np.int64] = field(repr=False, compare=False)
    sizes: NDArray[np.int64] = field(repr=False, compare=False)
    objective: float
    iterations: int
    seed: int
    attempts: int
    spherical: bool


def kmeans(
    vectors: Vectors | Tensor,
    clusters: int,
    *,
    iterations: int = 20,
    seed: int = 0,
    attempts: int = 1,
    spherical: bool = False,
) -> Clusters:
    """Split vectors into clusters, each around its mean.

    Every vector takes part: nothing is sampled. The same vectors, seed and number of threads give
    the same clusters on the same processor. Where the clusters are at least as many as the distinct
    vectors, each distinct vector is a center, and there are no more centers than that.

    Args:
        vectors: One row each, array or tensor of floating point numbers. (N, D)
        clusters: Number of clusters, K.
        iterations: Rounds of assignment and averaging; 20 as in pytorch-metric-learning.
        seed: Random seed of the first centers.
        attempts: Start this often and keep the best.
        spherical: Compare by cosine; vectors and centers are scaled to unit length.
    """
    for name, value in (("clusters", clusters), ("iterations", iterations), ("attempts", attempts)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    rows = _rows(vectors, spherical)
    distinct = _first_appearances(rows)
    if len(distinct) <= clusters:
        centers = rows[distinct]
    else:
        trainer = _trainer(rows, clusters, iterations, seed, attempts, spherical)
        trainer.train(rows)
        centers = np.asarray(trainer.centroids, dtype=np.float32)
    nearness, nearest = _nearest(rows, centers, spherical)
    return Clusters(
        centers=centers,
        assignments=nearest,
        sizes=np.bincount(nearest, minlength=len(centers)),
        objective=float(nearness.mean(dtype=np.float64)),
        iterations=iterations,
        seed=seed,
        attempts=attempts,
        spherical=spherical,
    )


def _trainer(
    rows: Vectors, clusters: int, iterations: int, seed: int, attempts: int, spherical: bool
) -> faiss.Kmeans:
    return faiss.Kmeans(
        rows.shape[1],
        clusters,
        niter=iterations,
        nredo=attempts,
        seed=seed,
        spherical=spherical,
        # faiss warns below the first number and samples above the second.
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),
    )


def _nearest(rows: Vectors, centers: Vectors, cosine: bool) -> tuple[Vectors, NDArray[np.int64]]:
    index = (faiss.IndexFlatIP if cosine else faiss.IndexFlatL2)(rows.shape[1])
    index.add(centers)
    nearness, nearest = index.search(rows, 1)  # (N, 1) each
    return nearness[:, 0], nearest[:, 0]


def _first_appearances(rows: Vectors) -> list[int]:
    """The first row of every distinct vector."""
    seen: dict[bytes, int] = {}
    for place, row in enumerate(rows):
        seen.setdefault(row.tobytes(), place)
    return list(seen.values())


def _rows(vectors: Vectors | Tensor, unit: bool) -> Vectors:
    """The vectors as contiguous float32 rows, of unit length where asked; bad rows are refused."""
    given = vectors.detach().cpu().float().numpy() if isinstance(vectors, Tensor) else vectors
    if not isinstance(given, np.ndarray):
        raise TypeError(f"vectors must be an array or a tensor, got {type(vectors).__name__}")
    if given.ndim != 2 or 0 in given.shape:
        raise ValueError(f"vectors must have shape (number, dim), got {given.shape}")
    if given.dtype.kind != "f":
        raise TypeError(f"vectors must hold floating point numbers, got {given.dtype}")
    with np.errstate(over="ignore"):  # what is too large for float32 is named below
        rows = np.ascontiguousarray(given, dtype=np.float32) + np.float32(0.0)  # -0.0 equals 0.0
    _refuse(~np.isfinite(rows).all(axis=1), "NaN, infinity or numbers beyond float32")
    if unit:
        largest = np.abs(rows).max(axis=1, keepdims=True)
        _refuse(largest[:, 0] == 0.0, "only zeros, which have no direction")
        rows /= largest  # squares of the rest neither overflow nor vanish
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def _refuse(bad: NDArray[np.bool_], what: str) -> None:
    indices = np.flatnonzero(bad)
    if len(indices):
        shown = ", ".join(map(str, indices[:10])) + (", ..." if len(indices) > 10 else "")
        raise ValueError(f"vectors hold {what} in {len(indices)} of {len(bad)} rows: {shown}")
