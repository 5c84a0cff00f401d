"""Ortho: triplets of graph clusters, an angular constraint, and an orthonormal linear layer."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cbml.data import EpochBatches
from cbml.errors import BadData
from cbml.index import Index
from cbml.losses import check_count, check_number
from cbml.methods.unlabeled import HeadStart, Projection, angular_factor, image_features
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, StepLoss, TrainingView

Labels = NDArray[np.int64]


class Ortho(Projection):
    """The orthogonality based probabilistic loss (Dutta, Harandi and Sekhar, IEEE TAI 2020).

    x are unit features, L has orthonormal columns, R weighs triplets, s is the logistic function.
    For each pair of a cluster within the batch, n is the nearest of the negatives that are farther
    than the positive, by |L'(x - y)|², but not by more than the margin:

        m    = (a + p) / 2,   w = [s(a'RR'p) + 1 - s(m'RR'n)] / 2
        z    = |L'(a - p)|² - 4 tan²(alpha) |L'(n - m)|²
        loss = mean log(1 + exp(w softplus(z)))

    w gives no gradient to the features. The clusters are found once: on the graph of the nearest
    neighbors of the start model's features every image goes to its neighbor of the largest degree,
    until it is at a mode. Batches are drawn at random. A batch without triplets teaches nothing.

    The authors' program, a precursor of the paper's, takes five rounds of Riemannian conjugate
    gradients on R and L for each step of the network; here the optimizer moves all of them at once
    and L is made orthonormal after each step. Their cluster labels are not public.

    Args:
        alpha: Degrees. 45 in the authors' program.
        margin: Margin of semi-hard negatives. 0.5 in the authors' program.
        neighbors: On the graph of the clusters. Ours: 10 gave 78 clusters of emoji, 3 gave 418, of
            whose pairs seven times as many were of one class.
        head_start: "random", or "whitened": the principal directions of the features.
        seed: Random seed of R and of the batches.
    """

    def __init__(
        self,
        *,
        alpha: float = 45.0,
        margin: float = 0.5,
        neighbors: int = 3,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        self.factor = angular_factor(alpha)
        self.margin = check_number(margin, "margin", above=0.0)
        self.neighbors = check_count(neighbors, "neighbors")
        self.seed = seed
        self.weighing = nn.Parameter(torch.zeros(0))  # R, as wide as the model's features

    def attach(self, model: Embedder) -> None:
        """Meet the model, and draw R."""
        super().attach(model)
        generator = torch.Generator().manual_seed(self.seed)
        dim, features = self.projection.shape
        drawn = torch.randn(features, dim, generator=generator) / features**0.5
        self.weighing = nn.Parameter(drawn.to(self.projection.device))

    @torch.no_grad()
    def settle(self) -> None:
        """Make the columns of L orthonormal again, and follow with the bias."""
        self.orthonormalize()
        super().settle()

    def before_epoch(self, view: TrainingView) -> EpochPlan:
        """Batches at random; before the first epoch also the clusters."""
        steps, rows = view.batches.sampler.plan(view.epoch).shape  # type: ignore[attr-defined]
        readable = view.readable
        generator = np.random.default_rng([self.seed, view.epoch])
        rounds = -(-steps * rows // len(readable))
        drawn = np.concatenate([generator.permutation(readable) for _ in range(rounds)])
        batches = EpochBatches(drawn[: steps * rows].reshape(steps, rows))
        if view.batches.relabeled:
            return EpochPlan(batches=batches)
        found = self._clustered(view)
        next_readable = np.searchsorted(readable, np.arange(len(view.batches.images)))
        count = int(found.max()) + 1
        if count < 2:
            raise BadData(
                "--method ortho: all images climb to one mode, which has no negatives; join fewer, "
                "--set method.neighbors=1"
            )
        return EpochPlan(
            labels=found[np.minimum(next_readable, len(readable) - 1)],
            batches=batches,
            metadata={"clusters": count},
            text=f"labels from {count} modes of the graph",
        )

    def _clustered(self, view: TrainingView) -> Labels:
        """The clusters of the main process, in every process."""
        features = image_features(view.model, view.embed)
        unit = functional.normalize(torch.from_numpy(features), dim=1).numpy()
        like = torch.zeros(len(unit), dtype=torch.int64)

        def find() -> Tensor:
            return torch.from_numpy(graph_modes(unit, self.neighbors))

        return view.distributed.from_main_process(find, like).numpy()

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step."""
        x, weight = self.unit_features(outputs), self.projection
        triplets = semi_hard(x.detach() @ weight.T, batch.labels, self.margin)
        if not len(triplets[0]):
            return StepLoss((x.sum() + weight.sum() + self.weighing.sum()) * 0)
        return StepLoss(self.triplet_loss(x, *triplets))

    def triplet_loss(
        self, x: Tensor, anchors: Tensor, positives: Tensor, negatives: Tensor
    ) -> Tensor:
        """The loss of triplets of unit features.

        Args:
            x: Unit features. (B, C)
            anchors: Rows of the anchors. (T,)
            positives: Rows of their positives. (T,)
            negatives: Rows of their negatives. (T,)
        """
        weight = self.projection
        a, p, n = x[anchors], x[positives], x[negatives]
        middle = (a + p) / 2
        turned = x.detach() @ self.weighing  # x'R (B, D)
        near = (turned[anchors] * turned[positives]).sum(dim=1)
        far = ((turned[anchors] + turned[positives]) / 2 * turned[negatives]).sum(dim=1)
        w = (near.sigmoid() + 1 - far.sigmoid()) / 2
        across = ((a - p) @ weight.T).square().sum(dim=1)
        z = across - self.factor * ((n - middle) @ weight.T).square().sum(dim=1)
        return functional.softplus(w * functional.softplus(z)).mean()


@torch.no_grad()
def semi_hard(rows: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """Anchor, positive and negative of every ordered pair that has a semi-hard negative.

    Args:
        rows: Vectors, compared by squared distance. (B, D)
        labels: Cluster of each. (B,)
        margin: How much farther than the positive the negative may be.
    """
    lengths = rows.square().sum(dim=1)
    distances = lengths[:, None] + lengths[None, :] - 2 * rows @ rows.T
    same = labels[:, None] == labels[None, :]
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    anchors, positives = (same & ~itself).nonzero(as_tuple=True)
    reached = distances[anchors, positives][:, None]
    others = distances[anchors]  # (T, B)
    allowed = ~same[anchors] & (others > reached) & (others < reached + margin)
    nearest = others.masked_fill(~allowed, torch.inf).argmin(dim=1)
    found = allowed.any(dim=1)
    return anchors[found], positives[found], nearest[found]


def graph_modes(vectors: NDArray[np.float32], neighbors: int) -> Labels:
    """Clusters of unit vectors, from 0: what climbs to the same mode of the neighbor graph. (N,)

    Two vectors are joined by max(cosine, 0) where one is among the other's nearest. A random walk
    on that graph is at a vector as often as its degree says; each goes to the one of the largest
    degree among its neighbors and itself, the first of equals, until it stays.

    Args:
        vectors: Unit vectors. (N, D)
        neighbors: How many, the vector itself not among them.
    """
    index = Index(vectors.shape[1])
    index.add(vectors)
    found = index.search(vectors, min(neighbors + 1, len(vectors)))
    joined: list[dict[int, float]] = [{} for _ in vectors]
    for one, (ids, similarities) in enumerate(zip(found.ids, found.similarities, strict=True)):
        for other, similarity in zip(ids.tolist(), similarities.tolist(), strict=True):
            if other != one and similarity > 0:
                joined[one][other] = joined[other][one] = similarity
    degrees = [sum(edges.values()) for edges in joined]
    climb = np.array(
        [
            min((one, *edges), key=lambda other: (-degrees[other], other))
            for one, edges in enumerate(joined)
        ]
    )
    while not np.array_equal(climb[climb], climb):
        climb = climb[climb]
    modes: Labels = np.unique(climb, return_inverse=True)[1].astype(np.int64)
    return modes
