"""Losses of a positive pair against the negatives of its anchor, and of whole clusterings."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cbml.losses.baselines.baseline import (
    BaselineLoss,
    Batch,
    distances,
    masked_logsumexp,
    masked_mean,
)
from cbml.losses.options import check_count, check_flag, check_number


class LiftedStructure(BaselineLoss):
    """Every positive pair against all negatives of both its ends (Song et al. 2016).

    With D_ij the Euclidean distance of unit vectors, or of the embeddings as they come:

        J_ij = log(Σ_{n∈N_i} exp(α - D_in) + Σ_{n∈N_j} exp(α - D_jn)) + D_ij
        loss = ½ mean_{(i,j)∈P} max(0, J_ij)²

    With references, the negatives of a reference j are the anchors. Written here because
    pytorch-metric-learning lists every positive pair against every negative pair, 3.7 GB for each
    such table at batch 512 with 8 per class, and with references mistakes their numbers for those
    of anchors.

    Args:
        margin: α. 1, from the paper.
        unit_rows: Divide embeddings by their length. True, as all losses here, so that one protocol
            fits all; the authors' program does not, and False gives its value.
    """

    def __init__(self, *, margin: float = 1.0, unit_rows: bool = True) -> None:
        super().__init__()
        self.margin = check_number(margin, "margin", above=0.0)
        self.unit_rows = check_flag(unit_rows, "unit_rows")

    def _value(self, batch: Batch) -> Tensor:
        distance = distances(batch.similarity()) if self.unit_rows else batch.distances()
        positive, negative = batch.masks()
        of_anchor = masked_logsumexp(self.margin - distance, negative, dim=1)  # (B,)
        of_partner = of_anchor
        if not batch.is_self:
            of_partner = masked_logsumexp(self.margin - distance, negative, dim=0)  # (R,)
        pushed = of_anchor[:, None].logaddexp(of_partner[None, :])  # (B, R)
        return masked_mean((pushed + distance).relu().square() / 2.0, positive)


class NPair(BaselineLoss):
    """One positive against one negative of every other class (Sohn 2016).

    On inner products f_i·f_j of the embeddings as they come, not divided by their length. The
    paper draws one pair of each class; here all pairs of the batch count, each class the same, and
    a negative class counts by the mean over its members, so that neither the order of the batch
    nor its size per class decides. c runs over the classes other than that of i:

        loss = mean_classes mean_{(i,p)} log(1 + Σ_c mean_{n∈c} exp(f_i·f_n - f_i·f_p))
             + λ mean_i |f_i|²

    Written here because pytorch-metric-learning takes the first pair of each class in the order of
    the batch, and divides embeddings by their length.

    Args:
        norm_weight: λ. 0.01: the author's program weighs the mean over anchors plus the mean over
            positives by a quarter of the paper's 0.02, which is half of it for the mean over all.
            Without effect on embeddings of length one.
    """

    unit_rows = False

    def __init__(self, *, norm_weight: float = 0.01) -> None:
        super().__init__()
        self.norm_weight = check_number(norm_weight, "norm_weight", at_least=0.0)

    def _value(self, batch: Batch) -> Tensor:
        product = batch.similarity()
        positive, negative = batch.masks()
        alike = (batch.column_labels[:, None] == batch.column_labels[None, :]).to(product.dtype)
        class_size = negative.to(product.dtype) @ alike  # (B, R): of the column's class in the row
        pushed = masked_logsumexp(product - class_size.clamp(min=1.0).log(), negative, dim=1)
        cost = functional.softplus(pushed[:, None] - product).masked_fill(~positive, 0.0)
        same_class = (batch.labels[:, None] == batch.labels[None, :]).to(product.dtype)
        pairs_of_anchor = positive.sum(dim=1).to(product.dtype)  # (B,)
        pairs_of_class = (same_class @ pairs_of_anchor).clamp(min=1.0)  # (B,)
        classes = (pairs_of_anchor / pairs_of_class).sum().clamp(min=1.0)
        norms = batch.anchors.square().sum(dim=1).mean()
        return (cost.sum(dim=1) / pairs_of_class).sum() / classes + self.norm_weight * norms


class Angular(BaselineLoss):
    """Bound the angle at the negative of a triangle with a positive pair (Wang et al. 2017).

    With s_ij the similarity and t = tan²α, over the negatives n of anchor i:

        loss = mean_{(i,p)∈P} log(1 + Σ_n exp(4 t (s_in + s_pn) - 2 (1 + t) s_ip))

    Written here because pytorch-metric-learning multiplies divided anchors and positives with
    undivided negatives, and overlooks which negatives a miner chose.

    Args:
        angle: α in degrees. 45, from the paper.
    """

    def __init__(self, *, angle: float = 45.0) -> None:
        super().__init__()
        self.angle = check_number(angle, "angle", above=0.0)
        if self.angle >= 90.0:
            raise ValueError(f"angle must be below 90 degrees, got {angle}")

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity()
        among_columns = similarity if batch.is_self else batch.columns @ batch.columns.T
        positive, negative = batch.masks()
        anchors, partners = positive.nonzero(as_tuple=True)
        square = math.tan(math.radians(self.angle)) ** 2
        pushed = 4.0 * square * (similarity[anchors] + among_columns[partners])  # (P, R)
        pulled = 2.0 * (1.0 + square) * similarity[anchors, partners]  # (P,)
        cost = functional.softplus(masked_logsumexp(pushed, negative[anchors], dim=1) - pulled)
        return cost.sum() / max(len(anchors), 1)


class NTXent(BaselineLoss):
    """A positive pair against all negatives of its anchor by a softmax (Chen et al. 2020).

    With two crops of each image as its only members of a class this is instance discrimination:

        loss = mean_{(i,p)∈P} -log(exp(s_ip / τ) / (exp(s_ip / τ) + Σ_{n∈N_i} exp(s_in / τ)))

    Written here because pytorch-metric-learning lists every positive pair against every negative
    pair.

    Args:
        temperature: τ. 0.1, from the paper.
    """

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = check_number(temperature, "temperature", above=0.0)

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity() / self.temperature
        positive, negative = batch.masks()
        pushed = masked_logsumexp(similarity, negative, dim=1)  # (B,)
        return masked_mean(functional.softplus(pushed[:, None] - similarity), positive)


class TupletMargin(BaselineLoss):
    """A positive pair with an angle margin against all negatives of its anchor (Yu and Tao 2019).

    With cos θ_ij = s_ij:

        loss = mean_{(i,p)∈P} log(1 + Σ_{n∈N_i} exp(σ (cos θ_in - cos(θ_ip - β))))

    Written here because pytorch-metric-learning takes the arc cosine of similarities that rounding
    pushed beyond one, which is not a number for images that occur twice, and lists every
    positive pair against every negative pair.

    Args:
        scale: σ. 64, from the paper.
        margin: β in degrees. 5.73, the paper's 0.1 radians.
    """

    def __init__(self, *, scale: float = 64.0, margin: float = 5.73) -> None:
        super().__init__()
        self.scale = check_number(scale, "scale", above=0.0)
        self.margin = check_number(margin, "margin", at_least=0.0, at_most=180.0)

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity()
        positive, negative = batch.masks()
        pushed = masked_logsumexp(self.scale * similarity, negative, dim=1)  # (B,)
        # cos(θ - β) = cos θ cos β + sin θ sin β, and sin θ = D sqrt(1 - D²/4)
        distance = distances(similarity)
        sine = distance * (1.0 - distance.square() / 4.0).clamp(min=1e-7).sqrt()
        margin = math.radians(self.margin)
        pulled = self.scale * (math.cos(margin) * similarity + math.sin(margin) * sine)
        return masked_mean(functional.softplus(pushed[:, None] - pulled), positive)


# Triplets that are pulled and pushed when in order, and only pushed otherwise.

_DUPLICATE = 0.9999  # a positive beyond this is the same image; from the authors' program


class SelectivelyContrastiveTriplet(BaselineLoss):
    """Easiest positive and hardest negative, hard triplets only pushed: SCT (Xuan et al. 2020).

    With p the most similar positive of anchor i that is no duplicate (s_ip ≤ 0.9999), and n its
    most similar negative, a triplet is hard when s_in > s_ip or s_in > h, easy when s_in is below
    both, and dropped on the boundary:

        loss = (Σ_easy log(1 + exp((s_in - s_ip) / σ)) + λ Σ_hard s_in) / (number of both)

    A hard triplet leaves its positive alone: pulling it too makes all embeddings collapse.

    Args:
        hard_weight: λ. 1, from the authors' program.
        temperature: σ. 0.1, from the authors' program.
        hard_above: h. 0.8, from the authors' program of 2021; the paper has no such rule, and 1
            switches it off.
    """

    _takes_indices = False

    def __init__(
        self, *, hard_weight: float = 1.0, temperature: float = 0.1, hard_above: float = 0.8
    ) -> None:
        super().__init__()
        self.hard_weight = check_number(hard_weight, "hard_weight", at_least=0.0)
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.hard_above = check_number(hard_above, "hard_above", at_least=0.0, at_most=1.0)

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity()
        positive, negative = batch.masks()
        positive &= similarity <= _DUPLICATE
        complete = positive.any(dim=1) & negative.any(dim=1)
        easiest = similarity.masked_fill(~positive, -torch.inf).argmax(dim=1, keepdim=True)
        hardest = similarity.masked_fill(~negative, -torch.inf).argmax(dim=1, keepdim=True)
        pulled = similarity.gather(1, easiest)[:, 0]
        pushed = similarity.gather(1, hardest)[:, 0]
        hard = complete & ((pushed > pulled) | (pushed > self.hard_above))
        easy = complete & (pushed < pulled) & (pushed < self.hard_above)
        kept = functional.softplus((pushed - pulled) / self.temperature).masked_fill(~easy, 0.0)
        apart = self.hard_weight * pushed.masked_fill(~hard, 0.0)
        return (kept + apart).sum() / (hard.sum() + easy.sum()).clamp(min=1)


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
        rounds: Rounds of the refinement. 5, from the first author's program.
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
        distance: Distances of all images. (B, B)
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
        distance: Distances of all images. (B, B)
        medoids: Lists without repetition. (J, k)
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
        classes: Class of each image. (B,)
        clusters: Cluster of each image, for each clustering. (J, B)
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
