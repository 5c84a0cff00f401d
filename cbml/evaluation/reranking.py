"""The ranks of each query's positives after a reranker has put the nearest images in order again.

A first search by similarity gives each query its candidates. The reranker scores them, and only
their order among each other changes; what lies behind them stays where it is.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cbml.evaluation.ranking import (
    BEYOND,
    BLOCK_SIZE,
    Compute,
    PositiveRanges,
    Ranks,
    tie_slack,
)
from cbml.outputs import Reranker
from cbml.query_gallery import QueryGallery


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
    place = np.arange(width)[None]
    relevant: NDArray[np.bool_] = (place >= begin) & (place < end) & (place != own)
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
