"""D & C: learned masks over the embedding for clusters that split in two as training goes on."""

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData, check_choice
from cbml.index import kmeans
from cbml.losses import check_count, check_number
from cbml.methods.margin import (
    Draws,
    Pairs,
    distance_table,
    even_weights,
    inverse_density,
    margin_loss,
)
from cbml.methods.streams import (
    can_be_learned_from,
    cluster_plans,
    first_batches,
    renumbered,
    round_robin,
    unit_features,
)
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, Method, ParameterGroup, StepLoss, TrainingView

Masks = Literal["learned", "fixed"]
Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]

_ITERATIONS = 100  # of k-means
_ATTEMPTS = 30  # first centers that are tried
_FAR_WEIGHT = 1e-6


class MaskedDivideConquer(Method):
    """Masks of the embedding that clusters learn, as many as they grow to (Sanakoyeu et al. 2021).

    With x the output of the linear layer, before the division by its length, and m_c the mask of
    cluster c of the present k:

        divide, cluster c:  v = normalize(x relu(m_c)),   loss = Margin(v) + λ O
        conquer:            v = normalize(x),             loss = Margin(v)
        O = 1 / k(k - 1) Σ_{i≠j} cos(relu(m_i), relu(m_j)),   0 for k = 1

    Margin is that of `DivideConquer`, on pairs that are drawn: as many negatives of each anchor as
    anchors have positives on average, by 1 / q(d) with d at least `near`, those at β + m or beyond
    by 1e-6 of the largest such weight; positives are thinned or repeated to the same number.

    There is one cluster at first. Every few epochs the images are clustered anew by k-means on unit
    features, renumbered, and, but for the first time, each cluster is split in two until there are
    K of them; a child's mask starts as its parent's. A split is not made where a half would not
    have two images of two classes. The backbone rests in the first epoch after each clustering.
    Batches come from the clusters to the end. The embedding is plain, without masks.

    Cluster c of k has the stream k + c: the children of s are 2s and 2s + 1. Stream 0 is the whole.

    Args:
        num_images: Number of training images, N, unreadable ones included.
        embedding_size: Width of the embedding, D. 512 in the paper's tables.
        clusters: K, a power of two. 32, from the authors' command for SOP, as all numbers here.
        every: Epochs between two clusterings. 2.
        rest_epochs: Epochs after each in which the backbone rests. 1.
        divide_until: Share of the run's steps after which masks end. 80 of 180 epochs.
        masks: "learned", or "fixed": a child takes the first or the second half of what its parent
            has, which ends in the slices of `DivideConquer`.
        overlap_weight: λ. 0.01.
        mask_factor: Multiple of the learning rate for the masks. 100.
        mask_decay: Weight decay of the masks. 1e-4.
        margin: m. 0.2.
        beta: β. 1.2.
        near: Smallest distance of the weights. 0.5.
        seed: Random seed of clusters, batches and pairs.
    """

    smallest_batch = (2, 2)
    parts = ("raw",)
    cluster_of: Tensor  # (N,) cluster of each image, -1 for none
    level: Tensor  # how often clusters have split

    def __init__(
        self,
        *,
        num_images: int,
        embedding_size: int,
        clusters: int = 32,
        every: int = 2,
        rest_epochs: int = 1,
        divide_until: float = 80 / 180,
        masks: Masks = "learned",
        overlap_weight: float = 0.01,
        mask_factor: float = 100.0,
        mask_decay: float = 1e-4,
        margin: float = 0.2,
        beta: float = 1.2,
        near: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if type(clusters) is not int or clusters < 1 or clusters & (clusters - 1):
            raise ValueError(f"clusters must be a power of two, got {clusters!r}")
        self.clusters = clusters
        self.every = check_count(every, "every")
        self.rest_epochs = check_count(rest_epochs, "rest_epochs", at_least=0)
        self.learns_masks = check_choice(masks, "masks", Masks) == "learned"
        if not self.learns_masks and clusters > embedding_size:
            raise ValueError(f"clusters={clusters}: fixed masks of {embedding_size} numbers")
        self.divide_until = check_number(divide_until, "divide_until", at_least=0.0, at_most=1.0)
        self.overlap_weight = check_number(overlap_weight, "overlap_weight", at_least=0.0)
        self.mask_factor = check_number(mask_factor, "mask_factor", at_least=0.0)
        self.mask_decay = check_number(mask_decay, "mask_decay", at_least=0.0)
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.beta = check_number(beta, "beta", above=0.0)
        self.near = check_number(near, "near", above=0.0, at_most=2.0)
        self.seed = seed
        # One parameter for each level: Adam begins anew where clusters split, as the program does.
        self.masks = nn.ParameterList()
        start = torch.ones(1, embedding_size)
        for _ in range(clusters.bit_length()):
            self.masks.append(nn.Parameter(start.clone(), requires_grad=self.learns_masks))
            start = start.repeat_interleave(2, dim=0) if self.learns_masks else _halved(start)
        self.register_buffer("cluster_of", torch.full((num_images,), -1))
        self.register_buffer("level", torch.zeros((), dtype=torch.int64))

    def parameter_groups(self) -> list[ParameterGroup]:
        """The masks, at a multiple of the learning rate."""
        trained = [mask for mask in self.masks if mask.requires_grad]
        return [ParameterGroup("masks", trained, self.mask_factor, self.mask_decay)]

    def check_images(self, class_sizes: NDArray[np.int64]) -> None:
        """Refuse images that have no pairs to tell apart."""
        if int((class_sizes > 1).sum()) < 2:
            raise BadData(
                "--method d_and_c: needs two classes of two images; use another method, or more "
                "images of a class"
            )

    def before_epoch(self, view: TrainingView) -> EpochPlan:
        """Batches of the clusters in turn, which are found again and split where that is due."""
        if view.epoch % self.every == 0 or bool((self.cluster_of < 0).all()):
            self._cluster(view)
        count = 2 ** int(self.level)
        plans = cluster_plans(view, self.cluster_of.cpu().numpy(), count, seed=self.seed)
        if not plans:
            raise BadData("--method d_and_c: no two classes have two images that can be read")
        divides = view.step < (end := math.ceil(self.divide_until * view.steps))
        batches = round_robin({count + c: plan for c, plan in plans.items()})
        rests = view.epoch % self.every < self.rest_epochs
        return EpochPlan(
            batches=first_batches(
                batches, (end if divides else view.steps) - view.step, whole=not divides
            ),
            rest=frozenset({"backbone"} if rests else ()),
            metadata={"clusters": count, "used": len(plans), "divides": divides, "rests": rests},
            text=f"{'masks' if divides else 'whole embedding'} on batches of {len(plans)} of "
            f"{count} clusters{', the backbone rests' if rests else ''}",
        )

    @torch.no_grad()
    def _cluster(self, view: TrainingView) -> None:
        """Find the clusters again, in the main process, and split them where that is due."""
        features, readable, level = unit_features(view), view.readable, int(self.level)
        labels = view.batches.images.known_labels[readable]
        previous = self.cluster_of[readable].cpu().numpy()

        def find() -> Tensor:
            seed = self.seed + view.epoch
            found = find_clusters(features, labels, 2**level, seed=seed)[0]
            if (previous >= 0).all():
                found = renumbered(previous, found, 2**level)
            halves = None
            if view.epoch > 0 and 2**level < self.clusters:
                halves = split_clusters(features, labels, found, 2**level, seed=seed)
            return torch.from_numpy(
                np.append(found if halves is None else halves, halves is not None)
            )

        like = torch.zeros(len(readable) + 1, dtype=torch.int64)
        *_, has_split = found = view.distributed.from_main_process(find, like)
        self.cluster_of.fill_(-1)
        self.cluster_of[readable] = found[:-1].to(self.cluster_of.device)
        if bool(has_split):
            if self.learns_masks:
                self.masks[level + 1].copy_(self.masks[level].repeat_interleave(2, dim=0))
            self.level += 1

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of the masked rows of the batch's cluster, or of the plain embedding."""
        if batch.stream == 0:
            return StepLoss(self._margin(outputs.embeddings, batch))
        level = batch.stream.bit_length() - 1
        masks = self.masks[level].relu()
        rows = functional.normalize(outputs.parts["raw"] * masks[batch.stream - 2**level], dim=1)
        terms = {"margin": self._margin(rows, batch), "overlap": mask_overlap(masks)}
        return StepLoss(terms["margin"] + self.overlap_weight * terms["overlap"], terms)

    def _margin(self, rows: Tensor, batch: BatchInfo) -> Tensor:
        far = self.beta + self.margin
        pairs = weighted_pairs(rows, batch, Draws(batch, self.seed), near=self.near, far=far)
        beta = torch.full((len(rows),), self.beta, dtype=rows.dtype, device=rows.device)
        return margin_loss(rows, *pairs, beta=beta, margin=self.margin)


def mask_overlap(masks: Tensor) -> Tensor:
    """O: the mean cosine of different masks; zero where there is one.

    Args:
        masks: Behind the relu. (k, D)
    """
    unit = functional.normalize(masks, dim=1)
    different = ~torch.eye(len(masks), dtype=torch.bool, device=masks.device)
    pairs = max(1, len(masks) * (len(masks) - 1))
    return (unit @ unit.T).masked_fill(~different, 0.0).sum() / pairs


def weighted_pairs(
    rows: Tensor, batch: BatchInfo, draws: Draws, *, near: float, far: float
) -> tuple[Pairs, Pairs]:
    """As many positives as negatives of each anchor, negatives drawn evenly over distances.

    Args:
        rows: Unit vectors. (B, D)
        near: Distances below weigh as this one.
        far: Negatives at or beyond this distance weigh next to nothing.
    """
    same = batch.labels[:, None] == batch.labels[None, :]
    positive = same & ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    counts = positive.sum(dim=1)  # (B,)
    wanted = min(round(float(counts.double().mean())), int((~same).sum(dim=1).max()))
    if wanted < 1:
        nobody = counts.new_zeros(0)
        return Pairs(nobody, nobody), Pairs(nobody, nobody)
    distances = distance_table(rows).double()
    weights = inverse_density(distances, rows.shape[1], near).masked_fill(same, -torch.inf)
    weights = weights.log_softmax(dim=1)
    limit = weights.max(dim=1, keepdim=True).values + math.log(_FAR_WEIGHT)
    weights = torch.where((distances >= far) & ~same, limit, weights)
    negatives = draws.columns(weights, wanted)
    shuffled = draws.columns(even_weights(positive), int(counts.max()))
    slots = torch.arange(wanted, device=rows.device)[None, :] % counts[:, None].clamp(min=1)
    positives = shuffled.gather(1, slots)
    # An anchor without positives takes no part, and one with few negatives has fewer pairs.
    taken = ~same.gather(1, negatives) & (counts > 0)[:, None]
    anchors = taken.nonzero(as_tuple=True)[0]
    return Pairs(anchors, positives[taken]), Pairs(anchors, negatives[taken])


def find_clusters(
    features: Vectors, labels: Labels, count: int, *, seed: int
) -> tuple[Labels, bool]:
    """Clusters, and whether each can be learned from: the first attempt at which they can.

    Args:
        features: (N, C)
        labels: Class of each. (N,)
    """
    found = np.zeros(len(features), dtype=np.int64)
    for attempt in range(_ATTEMPTS):
        if count > 1:
            start = seed * _ATTEMPTS + attempt
            found = kmeans(features, count, iterations=_ITERATIONS, seed=start).assignments
        if all(can_be_learned_from(labels[found == k]) for k in range(count)):
            return found, True
        if count == 1:
            break
    return found, False


def split_clusters(
    features: Vectors, labels: Labels, clusters: Labels, count: int, *, seed: int
) -> Labels | None:
    """Each cluster c in two, 2c and 2c + 1; None where one cannot be split well.

    Args:
        features: (N, C)
        labels: Class of each. (N,)
        clusters: Of each. (N,)
    """
    halves = 2 * clusters
    for c in range(count):
        members = np.flatnonzero(clusters == c)
        if len(members) < 2:
            return None
        found, good = find_clusters(features[members], labels[members], 2, seed=seed)
        if not good:
            return None
        halves[members] += found
    return halves


def _halved(masks: Tensor) -> Tensor:
    """Two masks for each: the first half of its ones, and the second."""
    children = []
    for mask in masks:
        rank = mask.cumsum(0)
        first = mask * (rank <= math.ceil(float(mask.sum()) / 2))
        children += [first, mask - first]
    return torch.stack(children)
