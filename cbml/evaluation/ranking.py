"""The ranks of each query's positives, counted block by block; the gallery is never sorted.

With p_1 >= p_2 >= ... >= p_R the similarities of a query to its positives and n those to its
negatives:

    rank_j = j + |{n : n >= p_j}|                  ties count against the query
    first hit          = rank_1
    R-precision        = |{j : rank_j <= R}| / R
    average precision  = 1/R  Σ_{j : rank_j <= R}  j / rank_j

One pass over a row of similarities keeps the largest of every 64 neighbours. What else is needed
is found by these maxima: only groups whose largest reaches a positive hold negatives before it, and
the R-th largest of the maxima has R negatives at or above it, so that a positive which does not
exceed it is not among the R nearest and counts for nothing.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.evaluation.scene import Scene

__all__ = ["Ranks", "rank_positives"]

# Queries of a block, and the numbers it may hold: 2**26 float32 numbers are 256 MiB.
BLOCK_ROWS = 512
BLOCK_SIZE = 2**26
# Neighbouring similarities of which only the largest is kept: four cache lines.
GROUP = 64
# The rank of a positive that is not among the R nearest; larger than any number of pictures.
BEYOND = np.iinfo(np.int64).max


class Ranks(NamedTuple):
    """What the ranks of the positives give for each query.

    Args:
        first_hits: rank of the nearest positive. (Q,)
        average_precisions: at R, or None where not asked for. (Q,)
        r_precisions: share of positives among the R nearest, or None. (Q,)
    """

    first_hits: NDArray[np.int64]
    average_precisions: NDArray[np.float64] | None
    r_precisions: NDArray[np.float64] | None


def rank_positives(scene: Scene, precision: bool) -> Ranks:
    """The ranks of the positives of every query.

    All similarities of a query come from one product with the gallery, and only they are compared.

    Args:
        scene: queries and gallery.
        precision: whether the precisions are needed.
    """
    total, width, height = len(scene.queries), len(scene.gallery), _height(scene)
    first_hits = np.zeros(total, dtype=np.int64)
    averages, shares = np.zeros(total), np.zeros(total)
    counts = scene.positives()  # R, (Q,)
    # Filled up to whole groups by similarities that reach nothing.
    similarity = torch.full((height, -(-width // GROUP) * GROUP), -torch.inf)
    for start in range(0, total, height):
        # The last block is as high as the others and repeats the last query.
        block = torch.arange(start, start + height).clamp_(max=total - 1)
        places, count = block.numpy(), counts[block].numpy()
        torch.mm(scene.rows[scene.queries[block]], scene.gallery.T, out=similarity[:, :width])
        positives = _take_positives(similarity.numpy(), scene, block)  # (H, W)
        ranks = _Negatives(similarity).ranks(positives, int(count.max()) if precision else 0)
        first_hits[places] = ranks[:, 0]
        if precision:
            shares[places], averages[places] = _precisions(ranks, count)
    return Ranks(first_hits, averages, shares) if precision else Ranks(first_hits, None, None)


def _height(scene: Scene) -> int:
    """How many queries make a block."""
    widest = int((scene.end - scene.begin).max())
    height = min(BLOCK_ROWS, BLOCK_SIZE // (len(scene.gallery) + 2 * widest), len(scene.queries))
    # One row alone would go through another routine, in which equal rows may get unequal products.
    return max(2, height)


def _take_positives(
    similarity: NDArray[np.float32], scene: Scene, block: Tensor
) -> NDArray[np.float32]:
    """The positives of each row, descending, then -inf; in the block only negatives stay, (H, W).

    The query itself is neither; it leaves the block as well.
    """
    begin, end, own = (part[block].tolist() for part in (scene.begin, scene.end, scene.own))
    widest = max(last - first for first, last in zip(begin, end, strict=True))
    positives = np.full((len(similarity), widest), -np.inf, dtype=np.float32)
    for row, (first, last, itself) in enumerate(zip(begin, end, own, strict=True)):
        positives[row, : last - first] = similarity[row, first:last]
        similarity[row, first:last] = -np.inf
        if itself >= 0:
            positives[row, itself - first] = -np.inf
    return np.sort(positives, axis=1)[:, ::-1]


class _Negatives:
    """The negatives of a block of queries, with the largest of every group."""

    def __init__(self, similarity: Tensor) -> None:
        groups = similarity.view(len(similarity), -1, GROUP)  # (H, G, GROUP)
        self.groups: NDArray[np.float32] = groups.numpy()
        self.largest: NDArray[np.float32] = groups.amax(dim=2).numpy()  # (H, G)

    def ranks(self, positives: NDArray[np.float32], nearest: int) -> NDArray[np.int64]:
        """Ranks of the first positive and of those among the `nearest`; BEYOND for others, (H, W).

        Some that are further away may get their true rank as well.
        """
        useful = np.ones(len(positives), dtype=np.int64)  # they come first, (H,)
        if nearest:
            useful = np.maximum((positives > self._floor(nearest)).sum(axis=1), 1)
        lowest = np.take_along_axis(positives, useful[:, None] - 1, axis=1)  # (H, 1)
        order = np.arange(1, positives.shape[1] + 1)
        ranks = np.where(order <= useful[:, None], order, BEYOND)
        reached = self.largest >= lowest  # (H, G)
        for row in np.flatnonzero(reached.any(axis=1)).tolist():
            wanted = positives[row, : useful[row]]
            ranks[row, : len(wanted)] += self._before(row, reached[row], wanted)
        return ranks

    def _before(
        self, row: int, reached: NDArray[np.bool_], wanted: NDArray[np.float32]
    ) -> NDArray[np.int64] | int:
        """How many negatives are at or above each of the wanted similarities, descending."""
        hits = np.flatnonzero(reached)
        # Where much is reached, reading everything in its order is quicker than picking.
        candidates = self.groups[row] if 4 * len(hits) > len(reached) else self.groups[row, hits]
        above = candidates >= wanted[-1]
        if len(wanted) == 1:
            return int(np.count_nonzero(above))
        kept = np.sort(candidates[above])
        return len(kept) - np.searchsorted(kept, wanted)

    def _floor(self, nearest: int) -> NDArray[np.float32] | float:
        """A number that at least `nearest` negatives of the row reach, or -inf, (H, 1)."""
        place = self.largest.shape[1] - nearest
        if place < 0:
            return -np.inf
        return np.partition(self.largest, place, axis=1)[:, place, None]


def _precisions(
    ranks: NDArray[np.int64], count: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """R-precision and average precision at R of each row, (H,)."""
    hit = ranks <= count[:, None]
    precision = np.arange(1, ranks.shape[1] + 1) / ranks
    return hit.sum(axis=1) / count, (hit * precision).sum(axis=1) / count
