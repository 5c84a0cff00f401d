"""Two galleries of the same images, made by two models: what moved, and for which queries."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.gallery.gallery import Gallery
from cbml.gallery.results import Query, Ranking, SearchOptions

__all__ = ["compare_search", "counterparts", "largest_differences"]

Indices = NDArray[np.int64]


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
