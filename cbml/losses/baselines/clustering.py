"""A hinge between the best clustering of the batch by medoids and the true one."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.losses.baselines.baseline import BaselineLoss, Batch, distances
from cbml.losses.options import check_count, check_number


class FacilityLocation(BaselineLoss):
    """No clustering by medoids may look better than the classes (Song et al. 2017).

    With D_ij the Euclidean distance of unit vectors, K the number of classes in the batch and S a
    list of K medoids, each image belonging to its nearest one:

        F(S)   = -Σ_i min_{j∈S} D_ij
        Δ(S)   = 1 - NMI(classes, clusters of S),   NMI = I / sqrt(H H')
        F_true = -Σ_classes min_{j∈class} Σ_{i∈class} D_ij
        loss   = max(0, F(S) + γ Δ(S) - F_true)

    S is found greedily, each time by the image that makes F + γ Δ largest, and then refined: in
    each round every cluster in turn takes its best member as medoid. The search and Δ carry no
    gradient, the distances to the chosen medoids do. The loss is a sum over the batch, as in the
    first author's program.

    Args:
        margin: γ. 1, from the paper, which lets it decay at a rate that is not known; here it
            stays.
        rounds: of the refinement. 5, from the first author's program.
    """

    _takes_indices = False
    _takes_references = False

    def __init__(self, *, margin: float = 1.0, rounds: int = 5) -> None:
        super().__init__()
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.rounds = check_count(rounds, "rounds", at_least=0)

    def _value(self, batch: Batch) -> Tensor:
        distance = distances(batch.similarity())
        distance = distance.masked_fill(
            torch.eye(len(distance), device=distance.device).bool(), 0.0
        )
        table = distance.detach().cpu().double().numpy()
        classes = np.unique(batch.labels.cpu().numpy(), return_inverse=True)[1]
        medoids = find_medoids(table, classes, self.margin, self.rounds)
        clusters = assign(table, medoids[None])[0]
        wrong = float(disagreement(classes, clusters[None])[0])
        images = torch.arange(len(distance), device=distance.device)
        chosen = torch.from_numpy(medoids[clusters]).to(distance.device)
        true = torch.from_numpy(_class_medoids(table, classes)).to(distance.device)
        gain = distance[images, true].sum() - distance[images, chosen].sum()
        return (gain + self.margin * wrong).relu()


def find_medoids(
    distance: NDArray[np.float64], classes: NDArray[np.int64], margin: float, rounds: int
) -> NDArray[np.int64]:
    """The medoids that are best by F + γ Δ, greedily and then refined; of equals the first. (K,)

    Args:
        distance: of all images. (B, B)
        classes: 0 ... K - 1 of each image. (B,)
        margin: γ.
    """
    medoids = np.empty(0, dtype=np.int64)
    for _ in range(int(classes.max()) + 1):
        free = np.setdiff1d(np.arange(len(distance)), medoids)
        tried = np.column_stack((np.tile(medoids, (len(free), 1)), free))  # (J, k + 1)
        cost = distance[:, tried].min(axis=2).sum(axis=0)
        score = margin * disagreement(classes, assign(distance, tried)) - cost
        medoids = tried[score.argmax()]
    for _ in range(rounds):
        clusters = assign(distance, medoids[None])[0]
        for k in range(len(medoids)):
            members = np.flatnonzero(clusters == k)
            tried = np.tile(medoids, (len(members), 1))
            tried[:, k] = members
            cost = distance[np.ix_(members, members)].sum(axis=0)
            score = margin * disagreement(classes, assign(distance, tried)) - cost
            medoids = tried[score.argmax()]
    return medoids


def assign(distance: NDArray[np.float64], medoids: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each list of medoids the place in it of every image's nearest. (J, B)

    Args:
        distance: of all images. (B, B)
        medoids: lists without repetition. (J, k)
    """
    nearest: NDArray[np.int64] = distance[:, medoids].argmin(axis=2).T  # (J, B)
    # A medoid is its own, also where another image is the same.
    np.put_along_axis(nearest, medoids, np.arange(medoids.shape[1])[None, :], axis=1)
    return nearest


def disagreement(classes: NDArray[np.int64], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Δ of several clusterings: one minus the information they share with the classes. (J,)

    By the geometric mean of both entropies, as the first author's program had it. One cluster
    agrees with one class, and with nothing else.

    Args:
        classes: of each image. (B,)
        clusters: of each image, for each clustering. (J, B)
    """
    many, size = clusters.shape
    k, c = int(clusters.max()) + 1, int(classes.max()) + 1
    cells = (np.arange(many)[:, None] * k + clusters) * c + classes
    joint = np.bincount(cells.ravel(), minlength=many * k * c).reshape(many, k, c) / size
    of_clusters, of_classes = _entropy(joint.sum(axis=2)), _entropy(joint.sum(axis=1))
    shared = of_clusters + of_classes - _entropy(joint.reshape(many, -1))
    product = of_clusters * of_classes
    nmi = shared / np.sqrt(np.where(product > 0.0, product, 1.0))
    alike = (of_clusters <= 0.0) & (of_classes <= 0.0)
    return 1.0 - np.where(product > 0.0, nmi, alike)


def _entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """-Σ p log p of each row."""
    positive = np.where(shares > 0.0, shares, 1.0)
    return np.asarray(-(positive * np.log(positive)).sum(axis=1) + 0.0)


def _class_medoids(distance: NDArray[np.float64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each image the member of its class that is nearest to all of them. (B,)"""
    cost = np.where(classes[:, None] == classes[None, :], distance, 0.0).sum(axis=0)  # (B,)
    medoids = [
        members[cost[members].argmin()]
        for members in (np.flatnonzero(classes == c) for c in range(int(classes.max()) + 1))
    ]
    return np.asarray(medoids, dtype=np.int64)[classes]
