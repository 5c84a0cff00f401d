"""All labeled images as queries: scores, worst ones, confusions, and what a second model moves."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.gallery.gallery import Gallery
from cbml.gallery.loading import as_outputs, reranked_order
from cbml.gallery.results import Query, Ranking, SearchOptions
from cbml.gallery.storage import QueryScores, State
from cbml.index import Store

BLOCK = 1024  # queries of one search

Indices = NDArray[np.int64]
# embeddings, labels -> an object with the fields of cbml.Scores; this package does not import it.
Evaluate = Callable[..., Any]


def score_queries(store: Store, state: State, evaluate: Evaluate) -> QueryScores | None:
    """Every labeled image as a query to all others; None where no two images share a label."""
    images = state.images
    codes: dict[str, int] = {}
    # A label of its own for each unlabeled image: nobody's positive, and a query without any.
    labels = [
        -1 - index if image.label is None else codes.setdefault(image.label, len(codes))
        for index, image in enumerate(images)
    ]
    if max(Counter(labels).values()) < 2:
        return None
    ids = np.array([image.id for image in images], dtype=np.int64)
    vectors: Any = store.vectors(ids)
    options: dict[str, Any] = {"clustering": False}
    if state.reranker is not None:
        vectors = as_outputs(vectors, state.parts)
        options |= {"reranker": state.reranker.load(), "candidates": state.reranker.candidates}
    scores = evaluate(vectors, np.array(labels), **options)
    labeled = sum(label >= 0 for label in labels)
    totals = {
        "metrics": scores.metrics,
        "queries": scores.queries,
        "lone_queries": labeled - scores.queries,
        "classes": len(codes),
    }
    precisions = scores.per_query["map@r"]
    nearest = _nearest_others(store, state, ids)
    return QueryScores(totals, scores.first_hits, scores.positives, precisions, nearest)


def _nearest_others(store: Store, state: State, ids: Indices) -> Indices:
    """For each image the index of the first result of a search; -1 where there is none, (N,)."""
    nearest = np.full(len(ids), -1, dtype=np.int64)
    reranker = None if state.reranker is None else state.reranker.load()
    depth = 1 if state.reranker is None else state.reranker.candidates
    for start in range(0, len(ids), BLOCK):
        vectors = store.vectors(ids[start : start + BLOCK])
        for row, found in enumerate(store.search(vectors, depth + 1).ids, start=start):
            others = np.searchsorted(ids, found).clip(max=len(ids) - 1)
            # A server may hold vectors that are not images.
            others = others[(ids[others] == found) & (others != row)][:depth]
            if reranker is not None and len(others):
                asked, parts = (
                    {name: part[which] for name, part in state.parts.items()}
                    for which in (slice(row, row + 1), others)
                )
                query = as_outputs(vectors[row - start][None], asked)
                candidates = as_outputs(store.vectors(ids[others]), parts)
                others = others[reranked_order(reranker, query, candidates)]
            nearest[row] = others[0] if len(others) else -1
    return nearest


def worst_queries(gallery: Gallery) -> Indices:
    """Indices of the images with a positive: lowest average precision first. (M,)"""
    scores = gallery.state.scores
    if scores is None:
        return np.empty(0, dtype=np.int64)
    order = np.lexsort((gallery.ids, -scores.first_hits, scores.average_precisions))
    return order[scores.positives[order] > 0]


@dataclasses.dataclass(frozen=True)
class Confusion:
    """A label that is taken for another one.

    A query is taken for the label of its nearest image; `queries` are the indices of those to
    which this happened, `nearest` those of the images they were taken for.
    """

    label: str
    taken_for: str
    queries: tuple[int, ...]
    nearest: tuple[int, ...]


def find_confusions(gallery: Gallery) -> list[Confusion]:
    """Pairs of labels of which one is taken for the other, most frequent first."""
    scores = gallery.state.scores
    if scores is None or scores.nearest is None:
        return []
    codes, nearest = gallery.codes, scores.nearest
    wrong = np.flatnonzero((codes >= 0) & (nearest >= 0))
    wrong = wrong[(codes[nearest[wrong]] >= 0) & (codes[nearest[wrong]] != codes[wrong])]
    pairs: dict[tuple[int, int], list[int]] = {}
    for index in wrong.tolist():
        pairs.setdefault((int(codes[index]), int(codes[nearest[index]])), []).append(index)
    names = gallery.label_names
    return [
        Confusion(names[own], names[other], tuple(queries), tuple(nearest[queries].tolist()))
        for (own, other), queries in sorted(
            pairs.items(), key=lambda item: (-len(item[1]), item[0])
        )
    ]


def probability_check(gallery: Gallery) -> dict[str, Any] | None:
    """What the match probabilities were tested on; None without any."""
    calibration = gallery.state.calibration
    if calibration is None:
        return None
    # The weights of the run, tested on its held-out classes, or those fitted to these labels.
    fitted_here = calibration.odds.line != calibration.source
    return {
        "on": "gallery" if fitted_here else "held-out",
        "results": int(sum(calibration.check.counts)),
        "error": calibration.check.ece,
    }


def counterparts(here: Gallery, there: Gallery) -> Indices:
    """For each image the index of the same one in another gallery; -1 where it is not, (N,).

    The same is what has the same content, or else the same name.
    """
    contents: dict[str, list[int]] = {}
    for index, image in enumerate(there.images):
        contents.setdefault(image.sha256, []).append(index)
    names = {image.name: index for index, image in enumerate(there.images)}
    found = np.full(len(here), -1, dtype=np.int64)
    for index, image in enumerate(here.images):
        same = contents.get(image.sha256, [])
        # Of several files of one content the one of the same name is meant.
        by_name = names.get(image.name, -1)
        found[index] = by_name if by_name in same or not same else same[0]
    return found


def compare_search(
    galleries: tuple[Gallery, Gallery],
    queries: tuple[Query, Query],
    moves: tuple[Indices, Indices],
    k: int,
) -> list[dict[str, Any]]:
    """The results of two galleries for one image, each with its rank in the other one.

    `moves` are the `counterparts` from the first gallery to the second, and back.
    """
    rankings = [gallery.ranking(query) for gallery, query in zip(galleries, queries, strict=True)]
    sides = []
    for side, gallery in enumerate(galleries):
        response = gallery.respond(queries[side], SearchOptions(k=k), rankings[side])
        ranks = _ranks(galleries[1 - side], rankings[1 - side])
        results = []
        for result in response.results:
            other = int(moves[side][gallery.index_of(result.id)])
            rank = int(ranks[other]) if other >= 0 else 0
            results.append(
                {
                    **dataclasses.asdict(result),
                    "other_id": galleries[1 - side].images[other].id if other >= 0 else None,
                    "other_rank": rank or None,
                    "moved": rank - result.rank if rank and result.rank else None,
                }
            )
        sides.append({"query": dataclasses.asdict(response.query), "results": results})
    return sides


def largest_differences(main: Gallery, second: Gallery, moves: Indices) -> Indices:
    """Indices of the images whose average precision differs most between the two, (M,).

    Only images with a positive in both; equal ones are left out.
    """
    here, there = main.state.scores, second.state.scores
    if here is None or there is None:
        return np.empty(0, dtype=np.int64)
    both = np.flatnonzero((moves >= 0) & (here.positives > 0))
    both = both[there.positives[moves[both]] > 0]
    gain = there.average_precisions[moves[both]] - here.average_precisions[both]
    order = np.lexsort((main.ids[both], -np.abs(gain)))
    differing: Indices = both[order][gain[order] != 0]
    return differing


def _ranks(gallery: Gallery, ranking: Ranking) -> Indices:
    ranks = np.zeros(len(gallery), dtype=np.int64)
    ranks[ranking.indices] = ranking.ranks
    return ranks
