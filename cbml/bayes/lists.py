"""What a search shows: the nearest pictures of each query."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbml.bayes.pairs import Rows, Whole
from cbml.index import Index

__all__ = ["Lists", "nearest_lists", "ranks_to_learn_from"]

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
    index = Index(rows.shape[1])
    index.add(rows)
    found = index.search(rows[queries], depth + 1)
    keep = found.ids != queries[:, None]
    # Among more duplicates than fit, the query itself is not in its list: its end is dropped.
    keep[keep.all(axis=1), -1] = False
    shape = (len(queries), keep.shape[1] - 1)
    return Lists(queries, found.similarities[keep].reshape(shape), found.ids[keep].reshape(shape))
