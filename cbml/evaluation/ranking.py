"""The ranks of each query's positives, counted block by block; the gallery is never sorted.

With p_1 >= p_2 >= ... >= p_R the similarities of a query to its positives and n those to its
negatives:

    rank_j = j + |{n : n >= p_j - slack}|          ties count against the query

No library promises the order in which a product is summed, so what is equal may differ in its last
bits, by another amount on another processor, at the edge of a block, or with another number of
threads. The slack, √D 2⁻²³ for unit vectors in float32, is several times that difference: equal
similarities tie everywhere.

One pass over a row of similarities keeps the largest of every 64 neighbors. What else is needed
is found by these maxima: only groups whose largest reaches a positive hold negatives before it, and
the R-th largest of the maxima has R negatives at or above it, so that a positive which does not
exceed it is not among the R nearest and counts for nothing.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.errors import BadData
from cbml.outputs import Reranker
from cbml.query_gallery import QueryGallery

# Queries of a block, and the numbers it may hold: 2**26 float32 numbers are 256 MiB.
BLOCK_ROWS = 512
BLOCK_SIZE = 2**26
# Neighboring similarities of which only the largest is kept: four cache lines.
GROUP = 64
# The rank of a positive that is not among the R nearest; larger than any number of images.
BEYOND = np.iinfo(np.int64).max


def tie_slack(dim: int) -> float:
    """How much less similar a negative may be than a positive and still tie with it.

    Each of the D additions of a product of unit vectors rounds by at most 2⁻²⁴; such errors add up
    like a random walk, to √D 2⁻²⁴ (Higham and Mary 2019), and two products are compared.
    """
    return math.sqrt(dim) * 2.0**-23


Ranks = NDArray[np.int64]
# Ranks of the positives of some queries (H, W) and R (H,) -> a value for each query (H,).
Compute = Callable[[Ranks, Ranks], NDArray[np.float64]]


class PositiveRanges(NamedTuple):
    """Where the positives of each scored query stand in a gallery that is sorted by class.

    Args:
        queries: Indices of the queries that have a positive, ascending. (Q,)
        begin: First gallery image of the query's class. (Q,)
        end: One past the last. (Q,)
        own: The query itself in the gallery, or -1. (Q,)
    """

    queries: Tensor
    begin: Tensor
    end: Tensor
    own: Tensor

    @classmethod
    def of(cls, query_gallery: QueryGallery) -> "PositiveRanges":
        """The ranges of queries and a gallery that are both sorted by class.

        Args:
            query_gallery: Sorted; refused where no query has a positive.
        """
        begin = np.searchsorted(query_gallery.searched_codes, query_gallery.codes, side="left")
        end = np.searchsorted(query_gallery.searched_codes, query_gallery.codes, side="right")
        own = query_gallery.own_indices
        queries = np.flatnonzero(end - begin > (own >= 0))
        if not len(queries):
            raise BadData(
                f"labels: none of the {len(own)} queries has another image of its class to find"
            )
        parts = (queries, begin[queries], end[queries], own[queries])
        return cls(*map(torch.from_numpy, parts))

    def positives(self) -> Tensor:
        """R: how many gallery images share the query's class, itself left out. (Q,)"""
        return self.end - self.begin - (self.own >= 0).long()


def rank_positives(
    query_gallery: QueryGallery,
    ranges: PositiveRanges,
    computes: Mapping[str, Compute],
    *,
    nearest: bool,
) -> tuple[Ranks, dict[str, NDArray[np.float64]]]:
    """The rank of each query's nearest positive, and a value for each query and metric. (Q,)

    All similarities of a query come from one product with the gallery, and only they are compared.

    Args:
        computes: What to make of the ranks, by the metric's name.
        nearest: Whether it takes the ranks of all positives among the R nearest, or only the first.
    """
    queries, gallery = (
        torch.from_numpy(query_gallery.embeddings),
        torch.from_numpy(query_gallery.searched),
    )
    total, width, height = len(ranges.queries), len(gallery), _height(ranges, len(gallery))
    first_hits = np.zeros(total, dtype=np.int64)
    values = {name: np.zeros(total) for name in computes}
    counts, slack = ranges.positives(), np.float32(tie_slack(gallery.shape[1]))  # R, (Q,)
    # Filled up to whole groups by similarities that reach nothing.
    similarity = torch.full((height, -(-width // GROUP) * GROUP), -torch.inf)
    for start in range(0, total, height):
        # The last block is as high as the others and repeats the last query.
        block = torch.arange(start, start + height).clamp_(max=total - 1)
        indices, count = block.numpy(), counts[block].numpy()
        torch.mm(queries[ranges.queries[block]], gallery.T, out=similarity[:, :width])
        positives = _take_positives(similarity.numpy(), ranges, block) - slack  # (H, W)
        ranks = _Negatives(similarity).ranks(positives, int(count.max()) if nearest else 0)
        first_hits[indices] = ranks[:, 0]
        for name, compute in computes.items():
            values[name][indices] = compute(ranks, count)
    return first_hits, values


def _height(ranges: PositiveRanges, gallery: int) -> int:
    """How many queries make a block."""
    widest = int((ranges.end - ranges.begin).max())
    height = min(BLOCK_ROWS, BLOCK_SIZE // (gallery + 2 * widest), len(ranges.queries))
    return max(1, height)


def _take_positives(
    similarity: NDArray[np.float32], ranges: PositiveRanges, block: Tensor
) -> NDArray[np.float32]:
    """The positives of each row, descending, then -inf; in the block only negatives stay, (H, W).

    The query itself is neither; it leaves the block as well.
    """
    begin, end, own = (part[block].tolist() for part in ranges[1:])
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
        column = self.largest.shape[1] - nearest
        if column < 0:
            return -np.inf
        return np.partition(self.largest, column, axis=1)[:, column, None]


# The ranks of each query's positives after a reranker has put the nearest images in order again.
#
# A first search by similarity gives each query its candidates. The reranker scores them, and only
# their order among each other changes; what lies behind them stays where it is.


def rerank_positives(
    query_gallery: QueryGallery,
    ranges: PositiveRanges,
    computes: Mapping[str, Compute],
    reranker: Reranker,
    candidates: int,
) -> tuple[Ranks, dict[str, NDArray[np.float64]]]:
    """As `rank_positives`, with so many candidates of each query reranked; every list is sorted."""
    total, width = len(ranges.queries), len(query_gallery.searched)
    queries, gallery = query_gallery.query_outputs, query_gallery.searched_outputs
    first_hits = np.zeros(total, dtype=np.int64)
    values = {name: np.zeros(total) for name in computes}
    slack = tie_slack(gallery.embeddings.shape[1])
    height = max(1, min(256, BLOCK_SIZE // (16 * width)))
    for start in range(0, total, height):
        block = torch.arange(start, min(start + height, total))
        asked = queries.map(
            functools.partial(torch.index_select, dim=0, index=ranges.queries[block])
        )
        similarity = (asked.embeddings @ gallery.embeddings.T).numpy()  # (H, G)
        relevant = _relevant(ranges, block, width)
        _hide_own(similarity, ranges.own[block].numpy())
        order = _order(similarity, relevant, slack)
        depth = min(candidates, width - int(bool((ranges.own[block] >= 0).any())))
        nearest = order[:, :depth].copy()
        scores = _scores(reranker, asked, gallery, nearest)
        again = _order(scores, np.take_along_axis(relevant, nearest, 1), slack)
        order[:, :depth] = np.take_along_axis(nearest, again, 1)
        ranks = _ranks(np.take_along_axis(relevant, order, 1))
        first_hits[block.numpy()] = ranks[:, 0]
        counts = ranges.positives()[block].numpy()
        for name, compute in computes.items():
            values[name][block.numpy()] = compute(ranks, counts)
    return first_hits, values


def _relevant(ranges: PositiveRanges, block: torch.Tensor, width: int) -> NDArray[np.bool_]:
    """Whether each image of the gallery is a positive of each query, (H, G)."""
    begin, end, own = (part[block].numpy()[:, None] for part in ranges[1:])
    column = np.arange(width)[None]
    relevant: NDArray[np.bool_] = (column >= begin) & (column < end) & (column != own)
    return relevant


def _hide_own(similarity: NDArray[np.float32], own: NDArray[np.int64]) -> None:
    """Put each query behind everything else."""
    there = np.flatnonzero(own >= 0)
    similarity[there, own[there]] = -np.inf


def _order(scores: NDArray[Any], relevant: NDArray[np.bool_], slack: float) -> NDArray[np.int64]:
    """Columns by score, best first; what differs by rounding ties, against the query. (H, W)"""
    # Similarities are at most 1 and the slack is meant for them; larger scores round more.
    largest = np.abs(scores, where=np.isfinite(scores), out=np.zeros_like(scores)).max(initial=1.0)
    return np.lexsort((relevant, slack * largest * relevant - scores), axis=-1)


def _scores(reranker: Reranker, queries: Any, gallery: Any, candidates: Any) -> NDArray[Any]:
    scores = reranker(queries, gallery, torch.from_numpy(candidates)).numpy()
    if scores.shape != candidates.shape or not np.isfinite(scores).all():
        raise ValueError(
            f"reranker: must give a finite score for each of the {candidates.shape} candidates, "
            f"got shape {scores.shape}"
        )
    return scores


def _ranks(relevant: NDArray[np.bool_]) -> Ranks:
    """The ranks of the positives in ordered lists, ascending, then BEYOND. (H, W)"""
    counts = relevant.sum(axis=1)
    ranks = np.full((len(relevant), int(counts.max())), BEYOND)
    rows, columns = np.nonzero(relevant)
    first = np.cumsum(counts) - counts
    ranks[rows, np.arange(len(rows)) - first[rows]] = columns + 1
    return ranks
