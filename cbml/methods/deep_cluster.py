"""DeepCluster: clusters of the images, and a classifier of them that is drawn again each epoch."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cbml.data import EpochBatches
from cbml.index import kmeans
from cbml.losses import check_count
from cbml.methods.clusters import Labeling
from cbml.methods.unlabeled import HeadStart, Unlabeled, head_outputs, whitened
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, ParameterGroup, StepLoss, TrainingView

Labels = NDArray[np.int64]


class DeepCluster(Unlabeled):
    """DeepCluster (Caron, Bojanowski, Joulin and Douze, ECCV 2018).

    With h the vector that the model's linear layer gives, before the division by its length, each
    epoch

    1. takes h of all images, whitens it to at most `components` principal directions, divides it
       by its length, and finds K clusters by k-means, from other first centers each time;
    2. draws a new classifier, W normal with a deviation of 0.01, b = 0;
    3. draws as many images as there are, uniformly over the clusters that are not empty;
    4. trains by

        z = W relu(h) + b,   loss = mean_i [ logsumexp_c z_ic - z_i,y ]

    With SGD the classifier has no momentum, as in the authors' program. With Adam its averages of
    former epochs stay, which the program does not have. There is no Sobel filter.

    Args:
        num_classes: K. 10,000 for ImageNet in the authors' program, about ten for each class.
        embedding_size: Width of the embedding, D.
        components: Principal directions that are kept. 256 in the authors' program.
        iterations: Rounds of k-means. 20 in the authors' program.
        head_start: "random" or "whitened", how the model's linear layer starts.
        seed: Random seed of centers, classifiers and draws.
    """

    parts = ("raw",)

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        components: int = 256,
        iterations: int = 20,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        self.components = check_count(components, "components")
        self.iterations = check_count(iterations, "iterations")
        self.seed = seed
        self.weight = nn.Parameter(torch.zeros(num_classes, embedding_size))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def parameter_groups(self) -> list[ParameterGroup]:
        """The classifier, without momentum."""
        return [ParameterGroup("classifier", [self.weight, self.bias], momentum=0.0)]

    def before_epoch(self, view: TrainingView) -> EpochPlan:
        """New clusters, a new classifier of them, and draws that are uniform over them."""
        generator = np.random.default_rng([self.seed, view.epoch])
        vectors = head_outputs(view.model, view.embed)
        found = self._clustered(view, vectors, seed=int(generator.integers(2**31)))
        labeling = Labeling.of(found, len(self.bias), vectors, None)
        self._redraw(int(generator.integers(2**31)))
        readable = view.readable
        shape = view.batches.sampler.plan(view.epoch).shape  # type: ignore[attr-defined]
        drawn = readable[balanced_draws(found, shape[0] * shape[1], generator)]
        next_readable = np.searchsorted(readable, np.arange(len(view.batches.images)))
        return EpochPlan(
            labels=found[np.minimum(next_readable, len(readable) - 1)],
            batches=EpochBatches(drawn.reshape(shape)),
            metadata=labeling.metadata(),
            text=labeling.text(),
        )

    def _clustered(self, view: TrainingView, vectors: NDArray[np.float32], *, seed: int) -> Labels:
        """The labels of the main process, in every process."""

        def cluster() -> Tensor:
            unit = whitened(vectors, self.components)
            found = kmeans(unit, len(self.bias), iterations=self.iterations, seed=seed)
            return torch.from_numpy(found.assignments)

        like = torch.zeros(len(vectors), dtype=torch.int64)
        return view.distributed.from_main_process(cluster, like).numpy()

    @torch.no_grad()
    def _redraw(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.empty(self.weight.shape).normal_(0, 0.01, generator=generator)
        self.weight.copy_(drawn)
        self.bias.zero_()

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step."""
        hidden = functional.relu(outputs.parts["raw"])
        logits = functional.linear(hidden, self.weight, self.bias)  # (B, K)
        return StepLoss(functional.cross_entropy(logits, batch.labels))


def balanced_draws(labels: Labels, count: int, generator: np.random.Generator) -> NDArray[Any]:
    """So many positions, drawn uniformly over the clusters that are not empty. (count,)

    Each cluster gives ⌊count / clusters⌋ + 1 of its members, with replacement where it has no more
    than that; they are shuffled and cut to the count.

    Args:
        labels: Cluster of each position. (N,)
    """
    alive = np.unique(labels)
    each = count // len(alive) + 1
    drawn = []
    for cluster in alive:
        members = np.flatnonzero(labels == cluster)
        drawn.append(generator.choice(members, each, replace=len(members) <= each))
    return generator.permutation(np.concatenate(drawn))[:count]
