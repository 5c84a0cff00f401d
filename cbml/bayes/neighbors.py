"""What searches find: nearest neighbors, how many can be relevant, and the cohort behind them.

The cohort of a query is the few results that begin behind nearly all that can be relevant. Their
mean similarity says how much a similarity means there.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbml.index import Index
from cbml.query_gallery import QueryGallery

Embeddings = NDArray[np.float32]
Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]

# The cohort of a query: so many results, the first of them behind nearly all that can be relevant.
COHORT = 10
SPARE = 1.5
# No list is searched farther than this: classes may have any number of images.
DEEPEST = 1000
# Two classes are no picture of a gallery: next to nothing else is irrelevant among them.
FEWEST_CLASSES = 3
# What a gallery with labels must have for weights of its own.
ENOUGH_IMAGES, ENOUGH_CLASSES = 200, 5
# The results of so many queries tell enough, and a million images are searched in a minute.
QUERIES = 2048
# Of a longer list the first so many results are fitted to, and as many that stand for the rest.
FIRST = 64


class ExpectedPositives(NamedTuple):
    """What a query can expect to find in a set.

    Args:
        positives: R, the number of relevant images.
        own_positives: R for a query that is one of the set's images, and left out.
        cohort: Begin and end of the ranks of the cohort.
    """

    positives: float
    own_positives: float
    cohort: tuple[int, int]

    @classmethod
    def of_classes(cls, sizes: Indices) -> "ExpectedPositives":
        """For queries of the classes of a set, the more often the larger the class.

            R = Σ n_c² / N,  and  Σ n_c (n_c - 1) / N  for the set's own images

        Args:
            sizes: Images of each class, n_c. (C,)
        """
        images = int(sizes.sum())
        others = np.repeat(sizes - 1, sizes)
        return cls(
            positives=float(np.square(sizes).sum() / images),
            # Where no two images share a class, almost nothing is relevant.
            own_positives=max(float(others.mean()), 1.0 / images),
            cohort=cohort_ranks(others, images - 1),
        )

    @classmethod
    def of_number(cls, positives: float, images: int) -> "ExpectedPositives":
        """For queries that can all expect the same.

        Args:
            positives: R, the number of relevant images.
            images: How many images are searched.
        """
        if not (math.isfinite(positives) and positives > 0.0):
            raise ValueError(f"positives must be a finite number above zero, got {positives}")
        return cls(positives, positives, cohort_ranks(np.array([positives]), images - 1))


def cohort_ranks(positives: NDArray[Any], images: int) -> tuple[int, int]:
    """Begin and end of the ranks of the cohort, where so many positives and images can be found."""
    first = int(np.ceil(SPARE * np.percentile(positives, 90)))
    first = min(max(first, COHORT), DEEPEST)
    if images < first + COHORT:  # a small set: the farther half of it
        return min(first, images // 2), images
    return first, first + COHORT


def enough_to_fit(sizes: Indices) -> bool:
    """Whether classes of these sizes give enough relevant results to fit to."""
    shared = sizes[sizes > 1]
    return bool(shared.sum() >= ENOUGH_IMAGES and len(shared) >= ENOUGH_CLASSES)


def ranks_to_fit(depth: int) -> tuple[Indices, Indices]:
    """Ranks of a list of this length to fit to, and how many ranks each of them stands for."""
    if depth <= 2 * FIRST:
        return np.arange(depth), np.ones(depth, dtype=np.int64)
    edges = np.linspace(FIRST, depth, FIRST + 1).astype(np.int64)
    middles, sizes = (edges[:-1] + edges[1:]) // 2, np.diff(edges)
    return (
        np.concatenate([np.arange(FIRST), middles]),
        np.concatenate([np.ones(FIRST, dtype=np.int64), sizes]),
    )


def mean_of_cohort(similarities: ArrayLike, ranks: tuple[int, int], typical: float) -> Numbers:
    """The mean similarity of each query's cohort, (..., 1).

    Args:
        similarities: Similarities of results, the nearest first; -inf where there is none. (..., K)
        typical: For lists that end before the cohort begins.
    """
    cohort = np.asarray(similarities, dtype=np.float64)[..., ranks[0] : ranks[1]]
    there = np.isfinite(cohort)
    count = there.sum(axis=-1, keepdims=True)
    total = np.where(there, cohort, 0.0).sum(axis=-1, keepdims=True)
    return np.where(count > 0, total / np.maximum(count, 1), typical)


class Neighbors(NamedTuple):
    """Results of queries, the nearest first.

    Args:
        queries: Indices of the images that were searched for. (Q,)
        similarities: Similarities of each result. (Q, K)
        indices: Indices of the results among the images that were searched. (Q, K)
    """

    queries: Indices
    similarities: Embeddings
    indices: Indices

    def relevant(self, codes: Indices, searched_codes: Indices | None = None) -> NDArray[np.bool_]:
        """Whether each result is of its query's class, (Q, K)."""
        others = codes if searched_codes is None else searched_codes
        found: NDArray[np.bool_] = others[self.indices] == codes[self.queries][:, None]
        return found

    def at(self, ranks: Indices) -> "Neighbors":
        """Only the results at some ranks, which count from 0."""
        return Neighbors(self.queries, self.similarities[:, ranks], self.indices[:, ranks])


def nearest_neighbors(query_gallery: QueryGallery, depth: int, *, seed: int = 0) -> Neighbors:
    """The results of searches, each image left out of its own; of at most 2,048 queries.

    Args:
        depth: Results for each query; fewer where fewer images are searched.
    """
    total = len(query_gallery.codes)
    queries = np.arange(total)
    if total > QUERIES:
        queries = np.sort(np.random.default_rng(seed).permutation(total)[:QUERIES])
    index = _indexed(query_gallery.searched)
    return _search(
        index, query_gallery.embeddings[queries], queries, query_gallery.own_indices[queries], depth
    )


def _indexed(embeddings: Embeddings) -> Index:
    index = Index(embeddings.shape[1])
    index.add(embeddings)
    return index


def _search(
    index: Index, embeddings: Embeddings, queries: Indices, own: Indices, depth: int
) -> Neighbors:
    """The results of these embeddings, without the images that they themselves are."""
    if (own < 0).all():  # none is in the index
        found = index.search(embeddings, depth)
        return Neighbors(queries, found.similarities, found.ids)
    found = index.search(embeddings, depth + 1)
    keep = found.ids != own[:, None]
    # Among more duplicates than fit, the query itself is not in its list: its end is dropped.
    keep[keep.all(axis=1), -1] = False
    shape = (len(queries), keep.shape[1] - 1)
    found_similarities, found_indices = found.similarities[keep], found.ids[keep]
    return Neighbors(queries, found_similarities.reshape(shape), found_indices.reshape(shape))
