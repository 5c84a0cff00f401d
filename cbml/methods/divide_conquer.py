"""Divide and conquer: each cluster of the images trains a slice of the embedding of its own."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.errors import BadData
from cbml.index import kmeans
from cbml.losses import check_count, check_number
from cbml.methods.margin import Pairs, distance_table, margin_loss
from cbml.methods.streams import (
    cluster_plans,
    first_batches,
    renumbered,
    round_robin,
    unit_features,
)
from cbml.models import Head
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, Method, StepLoss, TrainingView

#: The stream of batches that train the whole embedding; cluster k has the stream k + 1.
WHOLE = 0
_ITERATIONS = 100  # of k-means


class DivideConquer(Method):
    """Clusters that train slices of the embedding, then all of it (Sanakoyeu et al. 2019).

    The linear layer is cut into K slices, v_k the unit vector of slice k. Every few epochs the
    training images are clustered by k-means on unit features before that layer, and renumbered so
    that most keep their number. Batches come from one cluster, the clusters take turns, an image
    that is the only one of its class in its cluster waits; where no cluster has two images of two
    classes, an epoch trains the whole embedding on all images. With d the distances of the rows

        divide, cluster k:  rows = v_k;    conquer:  rows = (v_1, ..., v_K) / √K
        loss = Σ max(0, d_ip - β + m) + Σ max(0, β - d_in + m)   / number of terms above zero

    over all positives p of each anchor i, and as many of its negatives n: the nearest of those
    with d_in >= `near`, then the farthest of those nearer than that. β is fixed.

    The run has three phases: slices; the whole embedding on batches from clusters; and, at last,
    the whole embedding on batches from all images. An epoch ends where a phase does.

    Args:
        num_images: Number of training images, N, unreadable ones included.
        clusters: K. 4 for CUB and Cars; 8 for SOP and In-Shop, from the authors' program.
        every: Epochs between two clusterings. 2, from the program.
        divide_until: Share of the run's steps after which slices end. 0.4, epoch 80 of the
            program's 200.
        cluster_until: Share of the run's steps after which clusters end. 0.95, epoch 190.
        margin: m. 0.2, from the program.
        beta: β. 1.2, from the program.
        near: Distance of the nearest negatives. 0.5, from the program.
        seed: Random seed of clusters and batches.
    """

    smallest_batch = (2, 2)
    cluster_of: Tensor  # (N,) cluster of each image, -1 for none

    def __init__(
        self,
        *,
        num_images: int,
        clusters: int = 4,
        every: int = 2,
        divide_until: float = 0.4,
        cluster_until: float = 0.95,
        margin: float = 0.2,
        beta: float = 1.2,
        near: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.clusters = check_count(clusters, "clusters")
        self.every = check_count(every, "every")
        self.seed = seed
        self.divide_until = check_number(divide_until, "divide_until", at_least=0.0, at_most=1.0)
        self.cluster_until = check_number(
            cluster_until, "cluster_until", at_least=self.divide_until, at_most=1.0
        )
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.beta = check_number(beta, "beta", above=0.0)
        self.near = check_number(near, "near", at_least=0.0, at_most=2.0)
        self.register_buffer("cluster_of", torch.full((num_images,), -1))

    def heads(self, dim: int) -> tuple[Head, ...]:
        """A slice for each cluster, as wide as the others but perhaps the last.

        Args:
            dim: Width of all together; 128 in the paper's tables.
        """
        width = -(-dim // self.clusters)
        last = dim - width * (self.clusters - 1)
        if last < 1:
            raise BadData(f"dim {dim}: cannot be cut into {self.clusters} slices of one width")
        widths = [width] * (self.clusters - 1) + [last]
        return tuple(Head(name=_name(k), dim=width) for k, width in enumerate(widths))

    def check_images(self, class_sizes: NDArray[np.int64]) -> None:
        """Refuse more clusters than there can be with two images of two classes."""
        paired = int(class_sizes[class_sizes > 1].sum())
        if int((class_sizes > 1).sum()) < 2 or paired < 4 * self.clusters:
            raise BadData(
                f"--method divide_conquer: {self.clusters} clusters with two images of two classes "
                f"need {4 * self.clusters} images that are not the only one of their class; there "
                f"are {paired}; use fewer clusters, --set method.clusters=NUMBER"
            )

    @torch.no_grad()
    def start(self, view: TrainingView) -> None:
        """Draw each slice of the layer as the program does, normal by its inputs and outputs."""
        generator = torch.Generator().manual_seed(self.seed)
        for k in range(self.clusters):
            layer = view.model.get_submodule(f"head.{_name(k)}.0")
            assert isinstance(layer, nn.Linear)
            drawn = torch.empty(layer.weight.shape)
            layer.weight.copy_(nn.init.xavier_normal_(drawn, generator=generator))
            bound = layer.in_features**-0.5
            drawn = torch.empty(layer.bias.shape).uniform_(-bound, bound, generator=generator)
            layer.bias.copy_(drawn)

    def before_epoch(self, view: TrainingView) -> EpochPlan | None:
        """Batches of the clusters in turn, which are found again where that is due."""
        ends = [math.ceil(share * view.steps) for share in (self.divide_until, self.cluster_until)]
        if view.step >= ends[1]:
            return None
        if view.epoch % self.every == 0 or bool((self.cluster_of < 0).all()):
            self._cluster(view)
        plans = cluster_plans(view, self.cluster_of.cpu().numpy(), self.clusters, seed=self.seed)
        divides = view.step < ends[0]
        if not plans:  # where classes are clusters; a run must not end for it
            return EpochPlan(
                metadata={"clusters": self.clusters, "used": 0, "divides": False},
                text="no cluster has two images of two classes: the whole embedding on batches "
                f"of all images; fewer clusters help, --set method.clusters={self.clusters // 2}",
            )
        batches = round_robin({k + 1: plan for k, plan in plans.items()})
        until = ends[0] if divides else ends[1]
        return EpochPlan(
            batches=first_batches(batches, until - view.step, whole=not divides),
            metadata={"clusters": self.clusters, "used": len(plans), "divides": divides},
            text=f"{'slices' if divides else 'whole embedding'} on batches of {len(plans)} of "
            f"{self.clusters} clusters",
        )

    def _cluster(self, view: TrainingView) -> None:
        """Find the clusters again, in the main process, under numbers that most images keep."""
        features, readable = unit_features(view), view.readable
        previous = self.cluster_of[readable].cpu().numpy()

        def find() -> Tensor:
            seed = self.seed + view.epoch
            found = kmeans(features, self.clusters, iterations=_ITERATIONS, seed=seed).assignments
            if (previous >= 0).all():
                found = renumbered(previous, found, self.clusters)
            return torch.from_numpy(found)

        like = torch.zeros(len(readable), dtype=torch.int64)
        found = view.distributed.from_main_process(find, like)
        self.cluster_of.fill_(-1)
        self.cluster_of[readable] = found.to(self.cluster_of.device)

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of the slice of the batch's cluster, or of the whole embedding."""
        rows = outputs.embeddings
        if batch.stream != WHOLE:
            rows = outputs.parts[_name(batch.stream - 1)]
        pairs = nearest_pairs(distance_table(rows), batch.labels, self.near)
        beta = torch.full((len(rows),), self.beta, dtype=rows.dtype, device=rows.device)
        return StepLoss(margin_loss(rows, *pairs, beta=beta, margin=self.margin))


def nearest_pairs(distances: Tensor, labels: Tensor, near: float) -> tuple[Pairs, Pairs]:
    """All positive pairs, and as many negatives of each anchor, the nearest beyond `near`.

    Args:
        distances: Of all pairs. (B, B)
        labels: Class of each row. (B,)
        near: Negatives below come after all others, the farthest first.
    """
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    wanted = positive.sum(dim=1, keepdim=True)
    beyond = 2.0 * near + 4.0 - distances  # behind every distance there is
    order = torch.where(distances >= near, distances, beyond).masked_fill(same, torch.inf)
    rank = order.argsort(dim=1, stable=True).argsort(dim=1)
    return Pairs.of(positive), Pairs.of(~same & (rank < wanted))


def _name(k: int) -> str:
    return f"slice_{k}"
