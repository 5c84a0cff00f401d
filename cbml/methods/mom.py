"""MOM: triplets of images that are near on a graph but far in space, and the other way round."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from cbml.data import EpochBatches
from cbml.errors import BadData
from cbml.index import Index
from cbml.losses import check_count, check_number
from cbml.methods.unlabeled import HeadStart, Unlabeled, image_features, whitened
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, StepLoss, TrainingView

Vectors = NDArray[np.float32]
Indices = NDArray[np.int64]

_COMPONENTS = 512  # of the descriptors, as in the authors' program
_POWER = 3  # of the similarities on the graph, as in the authors' program
_ROUNDS = 20  # of conjugate gradients; fixed, since large graphs do not converge
_TOLERANCE = 1e-10
_ANCHORS = 256  # that are mined at once


@dataclass(frozen=True)
class Mining:
    """How pools are found; the defaults are those of the authors' program.

    Args:
        neighbors: Nearest neighbors of an image on the graph, itself among them.
        diffusion: How far the walk on the graph reaches, in [0, 1).
        positive_list: Length of the lists whose difference gives the positives.
        negative_list: The same for the negatives.
        pool: Largest pool.
    """

    neighbors: int = 30
    diffusion: float = 0.99
    positive_list: int = 50
    negative_list: int = 100
    pool: int = 50

    def __post_init__(self) -> None:
        for name in ("neighbors", "positive_list", "negative_list", "pool"):
            check_count(getattr(self, name), name)
        if not 0 <= self.diffusion < 1:
            raise ValueError(f"diffusion must be in [0, 1), got {self.diffusion}")


class MOM(Unlabeled):
    """Mining on manifolds (Iscen, Tolias, Avrithis and Chum, CVPR 2018).

    Once, before the first step, from whitened features of the start model, s their cosines:

        W_ij  = max(s_ij, 0)³ where i and j are among each other's 30 nearest, else 0
        S     = D^-1/2 W D^-1/2, D the row sums of W;   (I - 0.99 S) f_q = e_q
        P+(q) = top50(f_q) without top50(s_q);   P-(q) = top100(s_q) without top100(f_q)

    Each epoch draws triplets: q any image with both pools, p uniformly from P+(q), n uniformly from
    the 10 of P-(q) that are now nearest to q.

        loss = mean f_q(p) max(0, margin + |x_q - x_p|² - |x_q - x_n|²)

    An image that the walk from q does not reach is in no list of f_q. The authors' descriptors are
    R-MAC of three sizes, whitened to 512 directions; here they are the pooled features of one size,
    and fewer directions where there are fewer than 4096 images.

    Args:
        num_images: Number of training images, N, unreadable ones included.
        margin: 0.5 in the authors' program.
        hardest: Nearest negatives to draw from. 10 in the authors' program.
        neighbors: See `Mining` for this and the next four. 30 in the authors' program.
        diffusion: 0.99 in the authors' program.
        positive_list: 50 in the authors' program.
        negative_list: 100 in the authors' program.
        pool: 50 in the authors' program.
        head_start: "random" or "whitened", how the linear layer starts.
        seed: Random seed of the triplets.
    """

    positives: Tensor  # (N, pool) images, -1 where there are fewer
    negatives: Tensor
    weights: Tensor  # (N, pool) f_q of the positives

    def __init__(
        self,
        *,
        num_images: int,
        margin: float = 0.5,
        hardest: int = 10,
        neighbors: int = 30,
        diffusion: float = 0.99,
        positive_list: int = 50,
        negative_list: int = 100,
        pool: int = 50,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        self.seed = seed
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.hardest = check_count(hardest, "hardest")
        self.mining = Mining(neighbors, diffusion, positive_list, negative_list, pool)
        nobody = torch.full((num_images, pool), -1)
        self.register_buffer("positives", nobody)
        self.register_buffer("negatives", nobody.clone())
        self.register_buffer("weights", torch.zeros(num_images, pool))

    def start(self, view: TrainingView) -> None:
        """Mine the pools."""
        readable = torch.from_numpy(view.readable)
        features = whitened(image_features(view.model, view.embed), _COMPONENTS)
        super().start(view)

        def mined() -> Tensor:
            positives, weights, negatives = mine(features, self.mining)
            # Places from 1 on: what goes from process to process is never negative.
            return torch.from_numpy(np.stack([positives + 1, weights, negatives + 1]))

        like = torch.zeros(3, len(features), self.mining.pool, dtype=torch.float64)
        positives, weights, negatives = view.distributed.from_main_process(mined, like)
        for buffer, found in ((self.positives, positives), (self.negatives, negatives)):
            indices = found.long() - 1
            images = torch.where(indices < 0, -1, readable[indices.clamp(min=0)])
            buffer[readable.to(buffer.device)] = images.to(buffer.device)
        self.weights[readable.to(self.weights.device)] = weights.to(self.weights)

    def before_epoch(self, view: TrainingView) -> EpochPlan:
        """Triplets, three rows each: anchor, positive, negative."""
        both = (self.positives[:, 0] >= 0) & (self.negatives[:, 0] >= 0)
        anchors = np.flatnonzero(both.cpu().numpy())
        if not len(anchors):
            raise BadData(
                "--method mom: no image has both hard positives and hard negatives; shorten the "
                "lists, such as --set method.positive_list=10 --set method.negative_list=20"
            )
        sampler = view.batches.sampler
        steps, rows = sampler.plan(view.epoch).shape  # type: ignore[attr-defined]
        unit = math.lcm(3, sampler.world_size)
        shape = (steps, max(rows // unit, 1) * unit)
        count = shape[0] * shape[1] // 3
        generator = np.random.default_rng([self.seed, view.epoch])
        rounds = -(-count // len(anchors))
        chosen = np.concatenate([generator.permutation(anchors) for _ in range(rounds)])[:count]
        triplets = self._triplets(view, chosen, generator)
        without = len(view.readable) - len(anchors)
        return EpochPlan(
            batches=EpochBatches(triplets.reshape(shape)),
            metadata={"anchors": len(anchors), "without_pools": without},
            text=f"triplets of {len(anchors)} anchors, {without} images have an empty pool",
        )

    def _triplets(
        self, view: TrainingView, chosen: Indices, generator: np.random.Generator
    ) -> Indices:
        """Each anchor with a positive and a hard negative. (T, 3)"""
        positives, negatives = self.positives.cpu().numpy(), self.negatives.cpu().numpy()
        embeddings = np.zeros((len(view.batches.images), view.model.dim), dtype=np.float32)
        embeddings[view.readable] = view.embed()
        triplets = []
        for anchor in chosen.tolist():
            negative = negatives[anchor][negatives[anchor] >= 0]
            nearest = np.argsort(-(embeddings[negative] @ embeddings[anchor]), kind="stable")
            hard = negative[nearest[: self.hardest]]
            positive = positives[anchor][positives[anchor] >= 0]
            triplets.append([anchor, generator.choice(positive), generator.choice(hard)])
        return np.array(triplets, dtype=np.int64)

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step.

        Args:
            outputs: Embeddings of the global batch, in threes.
        """
        x = outputs.embeddings.float()
        anchor, positive, negative = batch.indices.to(x.device).view(-1, 3).T
        # A row that stands in for an unreadable image is in no pool, and its triplet weighs zero.
        found = self.weights[anchor] * (self.positives[anchor] == positive[:, None])
        mined = (self.negatives[anchor] == negative[:, None]).any(dim=1)
        weight = found.sum(dim=1) * mined
        to_positive = (x[0::3] - x[1::3]).square().sum(dim=1)
        to_negative = (x[0::3] - x[2::3]).square().sum(dim=1)
        return StepLoss((weight * (self.margin + to_positive - to_negative).relu()).mean())


def manifold_graph(vectors: Vectors, neighbors: int) -> sparse.csr_array:
    """The symmetrically normalized graph of mutual neighbors, S. (N, N)

    Args:
        vectors: Unit vectors. (N, D)
        neighbors: How many count, the vector itself among them.
    """
    index = Index(vectors.shape[1])
    index.add(vectors)
    found = index.search(vectors, neighbors)
    count, width = found.ids.shape
    rows = np.repeat(np.arange(count), width)
    strength = np.maximum(found.similarities.astype(np.float64), 0).ravel() ** _POWER
    strength[rows == found.ids.ravel()] = 0
    directed = sparse.csr_array((strength, (rows, found.ids.ravel())), shape=(count, count))
    mutual = directed.minimum(directed.T)
    degrees = np.asarray(mutual.sum(axis=1)).ravel()
    # A vector without mutual neighbors has a row of zeros.
    scale = sparse.diags_array(np.where(degrees > 0, 1 / np.sqrt(np.maximum(degrees, 1e-300)), 0))
    return sparse.csr_array(scale @ mutual @ scale)


def diffuse(graph: sparse.csr_array, anchors: Indices, diffusion: float) -> NDArray[np.float64]:
    """f of some anchors, (I - a S) f_q = e_q, by conjugate gradients. (A, N)"""
    residual = np.zeros((graph.shape[0], len(anchors)))
    residual[anchors, np.arange(len(anchors))] = 1
    found, direction = np.zeros_like(residual), residual.copy()
    energy = np.square(residual).sum(axis=0)
    for _ in range(_ROUNDS):
        moved = direction - diffusion * (graph @ direction)
        running = energy > _TOLERANCE**2
        below = np.where(running, (direction * moved).sum(axis=0), 1)
        step = np.where(running, energy / below, 0)
        found += step * direction
        residual -= step * moved
        new = np.square(residual).sum(axis=0)
        direction = residual + np.where(running, new / np.where(running, energy, 1), 0) * direction
        energy = new
    return found.T


def mine(vectors: Vectors, mining: Mining) -> tuple[Indices, NDArray[np.float64], Indices]:
    """Positives, their weights f, and negatives of every vector, -1 and 0 where there are fewer.

    Args:
        vectors: Unit vectors. (N, D)
    """
    count = len(vectors)
    graph = manifold_graph(vectors, mining.neighbors)
    positives = np.full((count, mining.pool), -1)
    negatives, weights = positives.copy(), np.zeros((count, mining.pool))
    for start in range(0, count, _ANCHORS):
        anchors = np.arange(start, min(start + _ANCHORS, count))
        reached, near = diffuse(graph, anchors, mining.diffusion), vectors[anchors] @ vectors.T
        for anchor, f, s in zip(anchors.tolist(), reached, near, strict=True):
            if np.count_nonzero(f) < 2:
                continue  # nobody but itself: every other image would be a negative
            by_graph, by_space = np.argsort(-f, kind="stable"), np.argsort(-s, kind="stable")
            by_graph = by_graph[f[by_graph] > 0]
            for pool, first, second, length in (
                (positives, by_graph, by_space, mining.positive_list),
                (negatives, by_space, by_graph, mining.negative_list),
            ):
                kept = first[:length][~np.isin(first[:length], second[:length])]
                kept = kept[kept != anchor][: mining.pool]
                pool[anchor, : len(kept)] = kept
            taken = positives[anchor]
            weights[anchor] = np.where(taken >= 0, f[taken], 0)
    return positives, weights, negatives
