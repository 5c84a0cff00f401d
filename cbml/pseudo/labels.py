"""Unit vectors -> labels: clusters, what became of them since the last time, and alarms."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData
from cbml.index import kmeans
from cbml.pseudo.matching import matched

__all__ = ["Labelling", "cluster_count", "label_rows"]

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]

# Above these shares and similarities labels tell the loss next to nothing.
_GIANT = 0.5
_NEAR_ONE = 0.99
# Rounds of k-means; the objective hardly changes after that.
_ITERATIONS = 20
# Pictures in a cluster, on average, where nobody says how many clusters there are.
PICTURES_IN_A_CLUSTER = 4


@dataclass(frozen=True)
class Labelling:
    """Labels of pictures and how far they can be trusted.

    Args:
        labels: the number of each picture's cluster, below `clusters`. (N,)
        clusters: how many were asked for, K.
        alive: clusters with at least one picture.
        singletons: clusters with one picture. Its positives are other crops of itself.
        largest: share of the pictures in the largest cluster.
        moved: share of the pictures whose label is another than before; None the first time.
        similarity: mean cosine of all pairs.
    """

    labels: Labels
    clusters: int
    alive: int
    singletons: int
    largest: float
    moved: float | None
    similarity: float

    @classmethod
    def of(cls, labels: Labels, clusters: int, rows: Rows, previous: Labels | None) -> "Labelling":
        """Labels with what there is to say about them.

        Args:
            labels: the number of each picture's cluster. (N,)
            clusters: K.
            rows: vectors of the pictures, of any length. (N, D)
            previous: the labels before. (N,)
        """
        sizes = np.bincount(labels, minlength=clusters)
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        total = (rows / np.maximum(lengths, 1e-12)).sum(axis=0)
        pairs = max(1, len(rows) * (len(rows) - 1))
        return cls(
            labels=labels,
            clusters=clusters,
            alive=int((sizes > 0).sum()),
            singletons=int((sizes == 1).sum()),
            largest=float(sizes.max() / len(rows)),
            moved=None if previous is None else float((labels != previous).mean()),
            similarity=float((total @ total - len(rows)) / pairs),
        )

    def facts(self) -> dict[str, Any]:
        """All but the labels by name, ready for JSON."""
        named = ("clusters", "alive", "singletons", "largest", "moved", "similarity")
        return {name: getattr(self, name) for name in named}

    def alarm(self) -> str | None:
        """Why these labels look collapsed, None if they do not."""
        if self.similarity > _NEAR_ONE:
            return f"pictures are all alike: mean similarity {self.similarity:.3f}"
        if self.largest > _GIANT:
            return f"one cluster holds {self.largest:.0%} of the pictures"
        if self.alive < self.clusters / 2:
            return f"only {self.alive} of {self.clusters} clusters are alive"
        return None

    def text(self) -> str:
        """One line for people."""
        moved = "" if self.moved is None else f", {self.moved:.1%} of the pictures moved"
        return (
            f"labels from {self.alive} clusters alive of {self.clusters}{moved}, largest "
            f"{self.largest:.1%}, {self.singletons} of one picture"
        )


def cluster_count(pictures: int, clusters: int | None) -> int:
    """K: as given, else one cluster for four pictures.

    Too many clusters are safer than too few: a class cut into two costs a few false negatives
    among thousands of pairs, two classes in one cluster teach the model to confuse them.

    Args:
        pictures: how many there are, N.
        clusters: K, or None for the rule.
    """
    count = max(2, pictures // PICTURES_IN_A_CLUSTER) if clusters is None else clusters
    if not 2 <= count <= pictures:
        raise BadData(f"clusters={count}: between 2 and the {pictures} readable pictures")
    return count


def label_rows(
    rows: Rows, clusters: int, *, previous: Labels | None = None, seed: int = 0
) -> Labels:
    """Cluster by cosine; numbers follow those of the previous labels.

    k-means refills an empty cluster by splitting a large one; only where pictures are identical can
    one stay empty. It then has no label, and is counted.

    Args:
        rows: unit vectors. (N, D)
        clusters: K.
        previous: labels that the same pictures had before. (N,)
        seed: of the first centres.
    """
    found = kmeans(rows, clusters, iterations=_ITERATIONS, seed=seed, spherical=True)
    labels = found.assignments
    if previous is not None:
        labels = matched(previous, labels, clusters)
    return labels
