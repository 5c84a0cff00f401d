"""What a search shows: the nearest pictures of each query."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbml.bayes.fitting import Numbers, backgrounds
from cbml.bayes.pairs import Rows, Whole
from cbml.index import Index

__all__ = ["Lists", "crowd_means", "nearest_lists", "ranks_to_learn_from"]

# Lists of so many queries tell enough, and a million pictures are searched in a minute.
QUERIES = 2048
# Of a longer list the first so many results are learned from, and as many that stand for the rest.
FIRST = 64


class Lists(NamedTuple):
    """Results of queries, the nearest first.

    Args:
        queries: places of the pictures that were searched for. (Q,)
        similarities: of each result. (Q, K)
        neighbours: places of the results. (Q, K)
    """

    queries: Whole
    similarities: Rows
    neighbours: Whole

    def matches(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each result is of its query's class, (Q, K).

        Args:
            labels: one for each picture. (N,)
        """
        right: NDArray[np.bool_] = labels[self.neighbours] == labels[self.queries][:, None]
        return right

    def at(self, ranks: Whole) -> "Lists":
        """Only the results at some ranks.

        Args:
            ranks: from 0, ascending. (K,)
        """
        return Lists(self.queries, self.similarities[:, ranks], self.neighbours[:, ranks])


def ranks_to_learn_from(depth: int) -> tuple[Whole, Whole]:
    """Ranks of a list, and how many ranks each of them stands for.

    Args:
        depth: how long the list is.
    """
    if depth <= 2 * FIRST:
        return np.arange(depth), np.ones(depth, dtype=np.int64)
    edges = np.linspace(FIRST, depth, FIRST + 1).astype(np.int64)
    middles, sizes = (edges[:-1] + edges[1:]) // 2, np.diff(edges)
    return (
        np.concatenate([np.arange(FIRST), middles]),
        np.concatenate([np.ones(FIRST, dtype=np.int64), sizes]),
    )


def nearest_lists(rows: Rows, depth: int, *, seed: int = 0) -> Lists:
    """The results of searching a set for its own pictures, each left out by its place.

    Args:
        rows: unit rows. (N, D)
        depth: results for each query; fewer where the set is smaller.
        seed: of the choice of queries where there are more than 2,048 rows.
    """
    queries = np.arange(len(rows))
    if len(rows) > QUERIES:
        queries = np.sort(np.random.default_rng(seed).permutation(len(rows))[:QUERIES])
    return _searched(_indexed(rows), rows, queries, depth)


def crowd_means(rows: Rows, places: Whole, crowd: tuple[int, int], typical: float) -> Numbers:
    """The backgrounds of pictures of a set, in it, of the shape of the places.

    Args:
        rows: unit rows. (N, D)
        places: of the pictures, in any number and order; below zero for none.
        crowd: begin and end of the ranks of the crowd.
        typical: where there is no picture or no crowd.
    """
    wanted, back = np.unique(places, return_inverse=True)
    found, index = np.full(len(wanted), typical), _indexed(rows)
    begin = int(np.searchsorted(wanted, 0))
    for start in range(begin, len(wanted), QUERIES):
        block = slice(start, start + QUERIES)
        lists = _searched(index, rows, wanted[block], crowd[1])
        found[block] = backgrounds(lists.similarities, crowd, typical)[:, 0]
    return found[back].reshape(places.shape)


def _indexed(rows: Rows) -> Index:
    index = Index(rows.shape[1])
    index.add(rows)
    return index


def _searched(index: Index, rows: Rows, queries: Whole, depth: int) -> Lists:
    found = index.search(rows[queries], depth + 1)
    keep = found.ids != queries[:, None]
    # Among more duplicates than fit, the query itself is not in its list: its end is dropped.
    keep[keep.all(axis=1), -1] = False
    shape = (len(queries), keep.shape[1] - 1)
    return Lists(queries, found.similarities[keep].reshape(shape), found.ids[keep].reshape(shape))
