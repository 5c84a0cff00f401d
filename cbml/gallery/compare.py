"""One query in two galleries of the same pictures: what moved."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.gallery.answers import Query, Wish
from cbml.gallery.gallery import Gallery
from cbml.gallery.search import Ranking, answered

__all__ = ["compared", "counterparts"]


def counterparts(here: Gallery, there: Gallery) -> NDArray[np.int64]:
    """For each picture the place of the same one in another gallery; -1 where it is not, (N,).

    The same is what has the same content, or else the same name.

    Args:
        here: whose pictures are looked for.
        there: where they are looked for.
    """
    contents: dict[str, list[int]] = {}
    for place, picture in enumerate(there.pictures):
        contents.setdefault(picture.sha256, []).append(place)
    names = {picture.name: place for place, picture in enumerate(there.pictures)}
    found = np.full(len(here), -1, dtype=np.int64)
    for place, picture in enumerate(here.pictures):
        same = contents.get(picture.sha256, [])
        # Of several files of one content the one of the same name is meant.
        by_name = names.get(picture.name, -1)
        found[place] = by_name if by_name in same or not same else same[0]
    return found


def compared(
    galleries: tuple[Gallery, Gallery],
    queries: tuple[Query, Query],
    moves: tuple[NDArray[np.int64], NDArray[np.int64]],
    k: int,
) -> list[dict[str, Any]]:
    """The answers of two galleries to one picture, each result with its rank in the other one.

    Args:
        galleries: the two.
        queries: the picture as each of them sees it.
        moves: `counterparts` from the first to the second, and back.
        k: results wanted of each.
    """
    rankings = [gallery.ranking(query) for gallery, query in zip(galleries, queries, strict=True)]
    sides = []
    for side, gallery in enumerate(galleries):
        answer = answered(gallery, queries[side], Wish(k=k), rankings[side])
        ranks = _ranks(galleries[1 - side], rankings[1 - side])
        results = []
        for result in answer.results:
            other = int(moves[side][gallery.place(result.id)])
            rank = int(ranks[other]) if other >= 0 else 0
            results.append(
                {
                    **dataclasses.asdict(result),
                    "other_id": galleries[1 - side].pictures[other].id if other >= 0 else None,
                    "other_rank": rank or None,
                    "moved": rank - result.rank if rank and result.rank else None,
                }
            )
        sides.append({"query": dataclasses.asdict(answer.query), "results": results})
    return sides


def _ranks(gallery: Gallery, ranking: Ranking) -> NDArray[np.int64]:
    ranks = np.zeros(len(gallery), dtype=np.int64)
    ranks[ranking.places] = ranking.ranks
    return ranks
