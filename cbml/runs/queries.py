"""The queries that pages show, each with its nearest images, relevant or not."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cbml.data import PackedDataset
from cbml.evaluation import Scores
from cbml.report import QueryTiles, Tile, neighbor_tile, thumbnail

_QUERIES, _COMPARED = 6, 4
_NEIGHBORS, _FEWEST = 8, 3
_SIDE = 72

Indices = NDArray[np.int64]
Embeddings = NDArray[np.float32]


def query_tiles(dataset: PackedDataset, embeddings: Embeddings, query: int) -> QueryTiles:
    """A query and its nearest images, relevant or not."""
    labels, names = dataset.images.known_labels, dataset.images.class_names
    same = labels == labels[query]
    # Past the last relevant image all are irrelevant, and nobody is to blame for it.
    count = min(_NEIGHBORS, max(_FEWEST, int(same.sum()) - 1))
    similarity = embeddings @ embeddings[query]
    similarity[query] = -np.inf
    nearest = np.argsort(-similarity, kind="stable")[:count].tolist()

    def image(index: int) -> str:
        side = min(2 * _SIDE, dataset.packed.short_side)
        return thumbnail(dataset.packed.sized(dataset.indices[index], side), _SIDE)

    return QueryTiles(
        Tile(image(query), names[labels[query]], "query", "query"),
        [
            neighbor_tile(
                image(other), names[labels[other]], float(similarity[other]), bool(same[other])
            )
            for other in nearest
            if other != query
        ],
    )


def worst_and_best(dataset: PackedDataset, embeddings: Embeddings) -> dict[str, list[QueryTiles]]:
    """Queries whose nearest relevant image is furthest behind the nearest irrelevant one, and
    those where it is furthest ahead."""
    labels = dataset.images.known_labels
    similarity = embeddings @ embeddings.T  # (N, N)
    np.fill_diagonal(similarity, -np.inf)
    same = labels[:, None] == labels[None, :]
    np.fill_diagonal(same, False)
    queries = np.flatnonzero(same.any(axis=1))
    relevant = np.where(same, similarity, -np.inf).max(axis=1)[queries]
    irrelevant = np.where(same, -np.inf, similarity).max(axis=1)[queries]
    order = queries[np.argsort(relevant - irrelevant, kind="stable")]
    return {
        kind: [
            query_tiles(dataset, embeddings, query)
            for query in one_per_class(chosen, labels, _QUERIES)
        ]
        for kind, chosen in (("Worst", order), ("Best", order[::-1]))
    }


def by_gain(before: Scores, after: Scores) -> Indices:
    """The queries that have something to find, those first whose results gained most."""
    old, new = before.per_query["map@r"], after.per_query["map@r"]
    queries = np.flatnonzero(after.positives > 0)
    return queries[np.argsort((old - new)[queries], kind="stable")]


def before_and_after(
    dataset: PackedDataset, before: Embeddings, after: Embeddings, order: Indices
) -> list[tuple[QueryTiles, QueryTiles]]:
    """The first few of these queries, searched by both models."""
    return [
        (query_tiles(dataset, before, query), query_tiles(dataset, after, query))
        for query in one_per_class(order, dataset.images.known_labels, _COMPARED)
    ]


def one_per_class(order: Indices, labels: Indices, count: int) -> Sequence[int]:
    """The first few queries whose classes differ: near copies of one query tell nothing new."""
    first = np.sort(np.unique(labels[order], return_index=True)[1])
    chosen: list[int] = order[first][:count].tolist()
    return chosen
