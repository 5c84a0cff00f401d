"""Groups of vectors around their means, silent and repeatable."""

import math
from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np
import torch
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
) -> "Lloyd":
    def start(attempt: int) -> "Lloyd":
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
    for index, row in enumerate(rows):
        seen.setdefault(row.tobytes(), index)
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


# Numbers in a tile of scores, and in a block of rows in float64: 16 and 32 MB.
TILE = 2**22


class Lloyd:
    """Centers that move to the means of their vectors, and the nearest center of each vector.

    An empty cluster takes over the vector that is farthest from its center.

    The nearest center of x is the one with the largest score, s = x·c - |c|²/2 (x·c for cosines). A
    round of Lloyd's algorithm compares every vector with every center. But a center whose members
    did not change keeps its place, and with it all its scores. So only the centers that moved are
    compared with all vectors:

    - A vector whose own center stayed: its center still beats all others that stayed.
    - A vector whose own center moved: the centers that stayed have scores of at most `other`, the
      runner-up when they were last compared. If the own center still beats that, they need no look.
    - The few vectors left are compared with every center.

    Nothing is approximated. Scores come from products in float32, each wrong by at most half of
    `slack`; where the two best are closer than that, the distances in float64 decide, and of
    equally near centers the first. So the assignments are those of plain Lloyd in float64, whatever
    the number of threads and the shape of the tiles. Only one tile of scores exists at a time.

    Args:
        rows: float32; of unit length if spherical. (N, D)
        centers: The first ones, float32. (K, D)
        spherical: Centers are scaled to unit length and compared by cosine.
    """

    def __init__(self, rows: Tensor, centers: Tensor, spherical: bool) -> None:
        self.rows, self.centers, self.spherical = rows, centers.clone(), spherical
        self.half_squares = self._half_squares(self.centers)  # (K,)
        number, dim = rows.shape
        length = torch.linalg.vector_norm(rows, dim=1)  # (N,)
        # A float32 sum of D products is wrong by at most D · 2^-24 of their absolute sum, which
        # |x||c| bounds; a mean is never longer than the longest row. Two such errors, and a few
        # more roundings.
        longest = length.max()
        self.slack = (dim + 8) * 2.0**-23 * (length + longest / 2) * longest  # (N,)
        self.nearest = torch.zeros(number, dtype=torch.int64, device=rows.device)  # (N,)
        self.own = torch.full((number,), -torch.inf, device=rows.device)  # score of `nearest`
        self.other = self.own.clone()  # no other center has a larger score
        self._every = torch.arange(number, device=rows.device)
        self._block = max(1, TILE // dim)
        self.compared = 0  # scores of rows with centers that were computed
        self._compare(self._every, None)

    def run(self, iterations: int) -> None:
        """Move and assign so often, or until nothing changes any more."""
        touched = torch.ones(len(self.centers), dtype=torch.bool, device=self.rows.device)
        for _ in range(iterations):
            moved = self._move(touched)
            if not moved.any():
                return
            before = self.nearest.clone()
            self._assign(moved)
            changed = before != self.nearest
            touched = torch.zeros_like(moved)
            touched[before[changed]] = True
            touched[self.nearest[changed]] = True

    def nearness(self) -> Tensor:
        """Squared distance of each row to its center, or their cosine if spherical; float64."""
        distances = self._distances(self._every, self.nearest)
        return -distances if self.spherical else distances

    def _move(self, touched: Tensor) -> Tensor:
        """Put touched centers where their rows are; which ones moved, (K,)."""
        sizes = torch.bincount(self.nearest, minlength=len(self.centers))  # (K,)
        full = touched & (sizes > 0)
        means = self._sums(full)[full] / sizes[full, None]  # float64
        if self.spherical:
            length = torch.linalg.vector_norm(means, dim=1, keepdim=True)
            # Rows that cancel out have no direction: their center stays.
            means = torch.where(length > 0, means / length, self.centers[full].double())
        centers = self.centers.clone()
        centers[full] = means.float()
        empty = torch.nonzero(sizes == 0)[:, 0]
        if len(empty):
            distances = self._distances(self._every, self.nearest)
            farthest = torch.sort(distances, descending=True, stable=True).indices
            centers[empty] = self.rows[farthest[: len(empty)]]
        moved = (centers != self.centers).any(dim=1)
        self.centers, self.half_squares = centers, self._half_squares(centers)
        return moved

    def _sums(self, wanted: Tensor) -> Tensor:
        """Sums of the rows of the wanted clusters, in float64, (K, D)."""
        sums = torch.zeros(self.centers.shape, dtype=torch.float64, device=self.rows.device)
        members = torch.nonzero(wanted[self.nearest])[:, 0]
        for start in range(0, len(members), self._block):
            block = members[start : start + self._block]
            sums.index_add_(0, self.nearest[block], self.rows[block].double())
        return sums

    def _assign(self, moved: Tensor) -> None:
        """Find the nearest centers again, after some of them moved."""
        lost = moved[self.nearest]  # (N,) the own center moved, so its score is another
        indices = torch.nonzero(lost)[:, 0]
        known = torch.ones_like(lost)
        for start in range(0, len(indices), self._block):
            block = indices[start : start + self._block]
            rows, own = self.rows[block], self.nearest[block]
            scores = (rows * self.centers[own]).sum(dim=1) - self.half_squares[own]
            known[block] = scores > self.other[block] + self.slack[block]
        self.own[lost] = -torch.inf
        self.other[~known] = -torch.inf
        self._compare(torch.nonzero(known)[:, 0], torch.nonzero(moved)[:, 0])
        self._compare(torch.nonzero(~known)[:, 0], None)

    def _compare(self, indices: Tensor, candidates: Tensor | None) -> None:
        """Let some centers, or all, challenge what is known of some rows."""
        centers = self.centers if candidates is None else self.centers[candidates]
        halves = self.half_squares if candidates is None else self.half_squares[candidates]
        step = max(1, TILE // max(1, len(centers)))
        for start in range(0, len(indices), step):
            block = indices[start : start + step]
            scores = torch.mm(self.rows[block], centers.T).sub_(halves)  # (B, C)
            self.compared += scores.numel()
            best, column, second = best_two(scores)
            own = self.own[block]
            top = torch.maximum(best, own)
            runner_up = torch.maximum(torch.minimum(best, own), second)
            found = column if candidates is None else candidates[column]
            close = torch.nonzero(runner_up >= top - self.slack[block])[:, 0]
            self.own[block] = top
            self.other[block] = torch.maximum(self.other[block], runner_up)
            nearest = torch.where(best > own, found, self.nearest[block])
            if len(close):
                near = scores[close] >= (top - self.slack[block])[close, None]
                row, column = torch.nonzero(near, as_tuple=True)
                center = column if candidates is None else candidates[column]
                nearest[close] = self._decide(block[close], own[close], row, center)
                self.other[block[close]] = top[close]  # it may have been the loser's
            self.nearest[block] = nearest

    def _decide(self, indices: Tensor, own: Tensor, row: Tensor, center: Tensor) -> Tensor:
        """The nearest centers of rows whose best scores are too close to tell, (B,).

        Pairs of `row` (among these rows) and `center` say which it can be. The one that a row had
        can be it, too, unless it moved and lost its score.
        """
        stayed = torch.nonzero(own > -torch.inf)[:, 0]
        row, center = torch.cat([row, stayed]), torch.cat([center, self.nearest[indices[stayed]]])
        distance = self._distances(indices[row], center)
        order = torch.sort(center, stable=True).indices
        for key in (distance, row):  # by row, then by distance, then by number of the center
            order = order[torch.sort(key[order], stable=True).indices]
        row, center = row[order], center[order]
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        return center[first]

    def _distances(self, indices: Tensor, centers: Tensor) -> Tensor:
        """Squared distance of each row to a center, or minus their cosine; float64, (M,)."""
        found = []
        for start in range(0, len(indices), self._block):
            rows = self.rows[indices[start : start + self._block]].double()
            own = self.centers[centers[start : start + self._block]].double()
            pairs = -rows * own if self.spherical else (rows - own).square_()
            found.append(pairs.sum(dim=1))
        return torch.cat(found)

    def _half_squares(self, centers: Tensor) -> Tensor:
        """What scores subtract for each center, (K,)."""
        if self.spherical:
            return torch.zeros(len(centers), device=centers.device)
        return (0.5 * centers.double().square().sum(dim=1)).float()


def best_two(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest score of each row, its column, and the next largest.

    Args:
        scores: At least one column. (B, C)
    """
    if scores.device.type == "cpu":
        # torch finds places of maxima ten times slower than values; numpy does not.
        column = torch.from_numpy(scores.numpy().argmax(axis=1))[:, None]
    else:
        column = scores.argmax(dim=1, keepdim=True)
    best = scores.gather(1, column)
    second = scores.scatter_(1, column, -torch.inf).amax(dim=1)
    scores.scatter_(1, column, best)
    return best[:, 0], column[:, 0], second
