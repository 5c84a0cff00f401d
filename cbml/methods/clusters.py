"""Unit vectors -> labels: clusters, what became of them since the last time, and alarms."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from cbml.errors import BadData
from cbml.index import kmeans
from cbml.methods.unlabeled import nearest_others

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]

# Above these shares and similarities labels tell the loss next to nothing.
_GIANT = 0.5
_NEAR_ONE = 0.99
# Rounds of k-means; the objective hardly changes after that.
_ITERATIONS = 20


@dataclass(frozen=True)
class Labeling:
    """Labels of images and how far they can be trusted.

    Args:
        labels: Cluster of each image, from 0. (N,)
        clusters: How many clusters were asked for, K.
        alive: Clusters with at least one image.
        singletons: Clusters with one image, whose positives are other crops of itself.
        largest: Share of the images in the largest cluster.
        moved: Share of the images that changed their cluster; None the first time.
        similarity: Mean cosine of all pairs.
    """

    labels: Labels
    clusters: int
    alive: int
    singletons: int
    largest: float
    moved: float | None
    similarity: float

    @classmethod
    def of(
        cls, labels: Labels, clusters: int, vectors: Vectors, previous: Labels | None
    ) -> "Labeling":
        """Labels with what there is to say about them.

        Args:
            labels: Cluster of each image. (N,)
            clusters: K.
            vectors: Vectors of the images, of any length. (N, D)
            previous: The labels before. (N,)
        """
        sizes = np.bincount(labels, minlength=clusters)
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        total = (vectors / np.maximum(lengths, 1e-12)).sum(axis=0)
        pairs = max(1, len(vectors) * (len(vectors) - 1))
        return cls(
            labels=labels,
            clusters=clusters,
            alive=int((sizes > 0).sum()),
            singletons=int((sizes == 1).sum()),
            largest=float(sizes.max() / len(vectors)),
            moved=None if previous is None else float((labels != previous).mean()),
            similarity=float((total @ total - len(vectors)) / pairs),
        )

    def metadata(self) -> dict[str, Any]:
        """All but the labels by name, ready for JSON."""
        named = ("clusters", "alive", "singletons", "largest", "moved", "similarity")
        return {name: getattr(self, name) for name in named}

    def alarm(self) -> str | None:
        """Why these labels look collapsed, None if they do not."""
        if self.similarity > _NEAR_ONE:
            return f"images are all alike: mean similarity {self.similarity:.3f}"
        if self.largest > _GIANT:
            return f"one cluster holds {self.largest:.0%} of the images"
        if self.alive < self.clusters / 2:
            return f"only {self.alive} of {self.clusters} clusters are alive"
        return None

    def text(self) -> str:
        """One line for people."""
        moved = "" if self.moved is None else f", {self.moved:.1%} of the images moved"
        return (
            f"labels from {self.alive} clusters alive of {self.clusters}{moved}, largest "
            f"{self.largest:.1%}, {self.singletons} of one image"
        )


def check_clusters(clusters: int, images: int) -> int:
    """The number of clusters K, if so many images can have so many.

    Args:
        clusters: K.
        images: How many readable images there are, N.
    """
    if not 2 <= clusters <= images:
        raise BadData(f"clusters={clusters}: give between 2 and the {images} images")
    return clusters


def chain_count(vectors: Vectors) -> int:
    """The number of chains when each image joins its nearest neighbor; at least 2, at most N / 2.

    Every chain ends in a pair of images that are each other's nearest, so that their number is
    that of such pairs: the finest grouping that the images propose themselves, as in the first
    round of FINCH (Sarfraz et al., CVPR 2019).

    Args:
        vectors: Unit vectors of the images. (N, D)
    """
    images = np.arange(len(vectors))
    nearest = nearest_others(vectors, 1)[:, 0]
    joined = coo_matrix((np.ones(len(images)), (images, nearest)), shape=(len(images),) * 2)
    return max(2, int(connected_components(joined, directed=False, return_labels=False)))


def cluster_labels(
    vectors: Vectors, clusters: int, *, previous: Labels | None = None, seed: int = 0
) -> Labels:
    """Cluster by cosine; the numbering follows that of the previous labels.

    k-means refills an empty cluster by splitting a large one; only where images are identical can
    one stay empty. It then has no label, and is counted.

    Args:
        vectors: Unit vectors. (N, D)
        clusters: K.
        previous: Labels that the same images had before. (N,)
        seed: Random seed of the first centers.
    """
    found = kmeans(vectors, clusters, iterations=_ITERATIONS, seed=seed, spherical=True)
    labels = found.assignments
    return labels if previous is None else match_labels(previous, labels, clusters)


def match_labels(previous: Labels, current: Labels, clusters: int) -> Labels:
    """The current labels, renumbered so that as many as possible agree with the previous ones.

    Pairs of a former and a new cluster are taken in the order of the images they share, the
    largest first, and ties by the lower numbers; each cluster is taken once. New clusters without
    a partner get the numbers that are left, in their order. Unlike the best of all assignments
    this takes no table of K × K numbers, and it agrees on at least half as many images.
    """
    pairs, shared = np.unique(np.stack([previous, current], axis=1), axis=0, return_counts=True)
    number = np.full(clusters, -1, dtype=np.int64)  # new cluster -> the number it gets
    used = np.zeros(clusters, dtype=np.bool_)
    for pair in np.argsort(-shared, kind="stable").tolist():
        former, new = pairs[pair].tolist()
        if former < clusters and not used[former] and number[new] < 0:
            number[new], used[former] = former, True
    number[number < 0] = np.flatnonzero(~used)
    renumbered: Labels = number[current]
    return renumbered


def spread_labels(labels: Labels, readable: NDArray[np.int64], images: int) -> Labels:
    """Labels of all images: one that cannot be read gets that of the next one that can. (N,)

    Args:
        labels: Of the readable images.
        readable: Indices of the readable images, ascending.
        images: How many there are in all, N.
    """
    next_readable = np.searchsorted(readable, np.arange(images))
    everyones: Labels = labels[np.minimum(next_readable, len(readable) - 1)]
    return everyones
