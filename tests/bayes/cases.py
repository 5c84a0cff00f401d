"""Sets of embeddings with classes, of every shape that counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml import QueryGallery
from cbml.bayes.neighbors import Neighbors, nearest_neighbors

Set = tuple[NDArray[Any], NDArray[Any]]


def neighbors_of(embeddings: NDArray[Any], depth: int) -> Neighbors:
    """The results of searching a set for its own images."""
    labels = np.zeros(len(embeddings), dtype=np.int64)
    return nearest_neighbors(QueryGallery.of(embeddings, labels), depth)


def drawn(
    seed: int, *, images: int = 24, dim: int = 3, classes: int = 4, spread: float = 0.6
) -> Set:
    """Rows around a direction for each class; some rows are copies of others, some classes lone."""
    random = np.random.default_rng(seed)
    centers = random.normal(size=(classes, dim))
    labels = random.integers(0, classes, images)
    labels[:3] = 0, 0, 1  # at least one pair of either kind
    rows = centers[labels] + spread * random.normal(size=(images, dim))
    copies = random.integers(0, images, images // 6)
    rows[random.integers(0, images, len(copies))] = rows[copies]
    rows *= random.uniform(0.1, 9.0, size=(images, 1))
    return rows.astype(np.float32), labels


def crowded(seed: int, *, classes: int = 480, group: int = 24, each: int = 6) -> Set:
    """Classes in groups that lie close together, so that a similarity says more for some queries.

    Neighboring classes of a group are nearly the same; other groups have room. No function of the
    similarity alone can be right for the results of both.
    """
    random = np.random.default_rng(seed)
    groups, dim = classes // group, 12
    middles = np.repeat(random.normal(size=(groups, dim)), group, axis=0)
    room = np.repeat(random.uniform(0.25, 1.2, size=(groups, 1)), group, axis=0)
    centers = middles + room * random.normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), each)
    rows = centers[labels] + 0.35 * random.normal(size=(len(labels), dim))
    return rows.astype(np.float32), labels


def large_classes(spread: float) -> Set:
    """Classes of 60 images, each a cloud of its own size."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 60)
    sizes = random.uniform(0.4, 1.6, size=(12, 1))
    noise = spread * sizes[labels] * random.normal(size=(720, 16))
    return random.normal(size=(12, 16))[labels] + noise, labels
