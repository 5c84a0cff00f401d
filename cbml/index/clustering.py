"""Groups of vectors around their means, silent and repeatable."""

import math
from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.index.lloyd import Lloyd

Vectors = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Centers, the center of each vector, and how they were found.

    Args:
        centers: One row per cluster; fewer than asked if fewer vectors are distinct. (K, D)
        assignments: The nearest center of each vector. (N,)
        sizes: Vectors of each cluster; with many duplicates a cluster can stay empty. (K,)
        objective: Mean squared distance of a vector to its center; the mean cosine when spherical.
        iterations: Largest number of iterations of each attempt; it ends when nothing changes.
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

    Every vector takes part: nothing is sampled. The same vectors and seed give the same clusters
    with any number of threads. A tensor is clustered on its device. Where the clusters are at least
    as many as the distinct vectors, each distinct vector is a center, and there are no more centers
    than that.

    Args:
        vectors: One row each, array or tensor of floating point numbers. (N, D)
        clusters: Number of clusters, K.
        iterations: Rounds of assignment and averaging, fewer where nothing changes any more; 20 as
            in pytorch-metric-learning.
        seed: Random seed of the first centers.
        attempts: Start this often and keep the best.
        spherical: Compare by cosine; vectors and centers are scaled to unit length.
    """
    for name, value in (("clusters", clusters), ("iterations", iterations), ("attempts", attempts)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    rows = _rows(vectors, spherical)
    device = vectors.device if isinstance(vectors, Tensor) else torch.device("cpu")
    # A power of two rounds nothing, and keeps the squares of large and small rows in float32.
    _, exponent = np.frexp(np.abs(rows).max())
    scaled = torch.from_numpy(np.ldexp(rows, -exponent)).to(device)
    distinct = _first_appearances(rows, clusters + 1)
    if len(distinct) <= clusters:
        found = Lloyd(scaled, scaled[distinct], spherical)
    else:
        found = _best_attempt(scaled, clusters, iterations, seed, attempts, spherical)
    assignments = found.nearest.cpu().numpy()
    objective = float(found.nearness().mean())
    return Clusters(
        centers=np.ldexp(found.centers.cpu().numpy(), exponent),
        assignments=assignments,
        sizes=np.bincount(assignments, minlength=len(found.centers)),
        objective=objective if spherical else math.ldexp(objective, 2 * int(exponent)),
        iterations=iterations,
        seed=seed,
        attempts=attempts,
        spherical=spherical,
    )


def _best_attempt(
    rows: Tensor, clusters: int, iterations: int, seed: int, attempts: int, spherical: bool
) -> Lloyd:
    def start(attempt: int) -> Lloyd:
        # From the rows that faiss would start from, too.
        order = np.empty(len(rows), dtype=np.int32)
        untyped: Any = faiss  # its type stubs do not know this function
        untyped.rand_perm(faiss.swig_ptr(order), len(rows), seed + 1 + attempt * 15486557)
        first = torch.from_numpy(order[:clusters].astype(np.int64)).to(rows.device)
        state = Lloyd(rows, rows[first], spherical)
        state.run(iterations)
        return state

    sign = -1.0 if spherical else 1.0
    return min(map(start, range(attempts)), key=lambda state: sign * float(state.nearness().mean()))


def _first_appearances(rows: Vectors, limit: int) -> list[int]:
    """The first row of every distinct vector; not more than the limit."""
    seen: dict[bytes, int] = {}
    for place, row in enumerate(rows):
        seen.setdefault(row.tobytes(), place)
        if len(seen) == limit:
            break
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
