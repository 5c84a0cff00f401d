"""A query's ranking of a gallery -> results, filtered, with duplicates and missed pictures."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData
from cbml.gallery.answers import Answer, Query, Result, Wish
from cbml.gallery.likeness import repeated

if TYPE_CHECKING:
    from cbml.gallery.gallery import Gallery

__all__ = ["DEPTH", "Ranking", "answered", "ranked"]

# As deep as the stores can look; ranks below it are unknown.
DEPTH = 16_384
# As many pictures below it are compared one by one, where a filter leaves no more than these.
DEEP = 16_384
MISSED = 50
# How many candidates are looked at for each result wanted, where duplicates are hidden.
SPARE = 4
# How many candidates at least are looked at for those that are probable enough.
PROBABLE = 256

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ranking:
    """Pictures by descending similarity to a query, the query itself left out.

    Args:
        places: where they stand in the gallery. (M,)
        similarities: cosines. (M,)
        ranks: from 1; 0 where unknown. (M,)
    """

    places: Places
    similarities: NDArray[np.float32]
    ranks: Places

    def __len__(self) -> int:
        return len(self.places)

    def chosen(self, which: NDArray[np.bool_] | slice) -> "Ranking":
        """Some of them, in order.

        Args:
            which: a mask or a slice.
        """
        return Ranking(self.places[which], self.similarities[which], self.ranks[which])


def ranked(gallery: "Gallery", query: Query) -> Ranking:
    """All pictures of a gallery, nearest first, down to DEPTH.

    Args:
        gallery: what to search.
        query: what to search with.
    """
    found = gallery.store.search(query.vector[None], min(max(len(gallery), 1), DEPTH))
    ids, similarities = found.ids[0], found.similarities[0]
    places = np.searchsorted(gallery.ids, ids).clip(max=max(len(gallery) - 1, 0))
    # While a gallery is being built, a server may hold vectors that are not pictures yet.
    good = gallery.ids[places] == ids if len(gallery) else np.zeros(len(ids), dtype=np.bool_)
    if query.place is not None:
        good &= places != query.place
    places, similarities = places[good], similarities[good]
    return Ranking(places, similarities, np.arange(1, len(places) + 1))


def answered(gallery: "Gallery", query: Query, wish: Wish, ranking: Ranking) -> Answer:
    """The results that a wish asks for.

    Args:
        gallery: what was searched.
        query: what was searched with.
        wish: how many, and which filters.
        ranking: as `ranked` gave it.
    """
    if wish.min_probability is not None and not gallery.has_probability:
        raise BadData(
            "min_probability: this gallery has no calibration, so no probabilities; make it from "
            "a run that has one (cbml train and cbml analyze write calibration.json)"
        )
    allowed = np.zeros(len(gallery), dtype=np.bool_)
    allowed[gallery.places(label=wish.label, text=wish.text)] = True
    candidates = _passing(gallery, query, ranking, allowed, wish.k)
    if wish.min_probability is not None:
        candidates = candidates.chosen(slice(max(PROBABLE, SPARE * wish.k)))
        probable = gallery.probabilities(query, candidates, ranking)
        if probable is not None:
            candidates = candidates.chosen(probable >= wish.min_probability)
    candidates = candidates.chosen(slice(wish.k * (SPARE if wish.hide_duplicates else 1)))
    duplicate = repeated(gallery.state.looks[candidates.places], [query.look])
    shown = ~duplicate if wish.hide_duplicates else np.ones(len(candidates), dtype=np.bool_)
    seen = slice(int(np.searchsorted(np.cumsum(shown), wish.k)) + 1)  # up to the k-th that is shown
    results = candidates.chosen(seen).chosen(shown[seen])
    allowed[candidates.places[seen]] = False
    return Answer(
        query=gallery.asked(query.place),
        results=_results(gallery, query, ranking, results, duplicate[seen][shown[seen]]),
        missed=_missed(gallery, query, ranking, allowed),
        hidden_duplicates=len(candidates.places[seen]) - len(results),
        searched=len(gallery) - (query.place is not None),
    )


def _passing(
    gallery: "Gallery", query: Query, ranking: Ranking, allowed: NDArray[np.bool_], k: int
) -> Ranking:
    """The pictures that pass the filters; also those too deep in the ranking, if there is need."""
    inside = ranking.chosen(allowed[ranking.places])
    if len(inside) >= SPARE * k:
        return inside
    return _with_deep(gallery, query, inside, _deep(query, ranking, allowed))


def _deep(query: Query, ranking: Ranking, allowed: NDArray[np.bool_]) -> Places:
    """Places of allowed pictures that the ranking does not reach."""
    deep = allowed.copy()
    deep[ranking.places] = False
    if query.place is not None:
        deep[query.place] = False
    return np.flatnonzero(deep)


def _with_deep(gallery: "Gallery", query: Query, inside: Ranking, deep: Places) -> Ranking:
    if not 0 < len(deep) <= DEEP:
        return inside
    similarities = gallery.store.vectors(gallery.ids[deep]) @ query.vector
    order = np.lexsort((deep, -similarities))
    return Ranking(
        np.concatenate([inside.places, deep[order]]),
        np.concatenate([inside.similarities, similarities[order]]),
        np.concatenate([inside.ranks, np.zeros(len(deep), dtype=np.int64)]),
    )


def _missed(
    gallery: "Gallery", query: Query, ranking: Ranking, left: NDArray[np.bool_]
) -> tuple[Result, ...]:
    """The best of the pictures that are left and have the query's label."""
    if query.place is None or gallery.codes[query.place] < 0:
        return ()
    positive = left & (gallery.codes == gallery.codes[query.place])
    inside = ranking.chosen(positive[ranking.places])
    missed = _with_deep(gallery, query, inside, _deep(query, ranking, positive))
    missed = missed.chosen(slice(MISSED))
    duplicate = repeated(gallery.state.looks[missed.places], [query.look])
    return _results(gallery, query, ranking, missed, duplicate)


def _results(
    gallery: "Gallery",
    query: Query,
    ranking: Ranking,
    chosen: Ranking,
    duplicate: NDArray[np.bool_],
) -> tuple[Result, ...]:
    own = -1 if query.place is None else int(gallery.codes[query.place])
    probable = gallery.probabilities(query, chosen, ranking)
    results = []
    for number, place in enumerate(chosen.places.tolist()):
        picture, code = gallery.pictures[place], int(gallery.codes[place])
        results.append(
            Result(
                rank=int(chosen.ranks[number]) or None,
                id=picture.id,
                name=picture.name,
                label=picture.label,
                similarity=float(chosen.similarities[number]),
                probability=None if probable is None else float(probable[number]),
                correct=None if min(own, code) < 0 else own == code,
                duplicate=bool(duplicate[number]),
            )
        )
    return tuple(results)
