"""MIC: a second embedding learns what classes share, so that the first need not show it."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cbml.data import ClassBalancedSampler, EpochBatches
from cbml.errors import BadData, check_choice
from cbml.index import kmeans
from cbml.losses import check_count, check_number
from cbml.methods.margin import Draws, margin_loss, sampled_pairs
from cbml.methods.streams import batches_of
from cbml.models import Embedder, Head, find_backbone
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, Method, ParameterGroup, StepLoss, TrainingView

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]
Center = Literal["mean", "mean_and_deviation"]

#: The streams: batches of classes, and batches of clusters.
CLASS, SHARED = 0, 1
_ITERATIONS = 20  # of k-means
_FIRST_STAGE = "layer1"
# Pooling of the first stage's map of 56 × 56 places, to 4 × 4.
_WINDOW, _STRIDE, _PLACES = 18, 12, 56


class MIC(Method):
    """Two embeddings, of classes and of what they share, kept apart (Roth et al. 2019).

    With z^c and z^s the unit vectors of two linear layers on the same features, y the classes, q
    clusters of the images, and R a network of one hidden layer:

        batch of classes:   loss = Margin_c(z^c, y) + ρ A
        batch of clusters:  loss = Margin_s(z^s, q) + ρ A
        A = -mean_{b,d} (z^c_bd r_bd)²,   r = normalize(R(z^s))

    R makes A small, and gets the plain gradient; both layers get the reversed one. Margin is the
    margin loss on a positive of each anchor, drawn evenly, and a negative, drawn by 1 / q(d) with
    d at least `near`; β is learned, one for each class and each cluster. A batch of classes is
    followed by one of clusters with probability p; each is a step of the run. In the latter an
    image is replaced, with probability `noise`, by one of any cluster, and keeps the label.

    The first clusters are those of pooled maps of the backbone's first stage, of length one, minus
    the mean of their class; later ones those of z^s. The embedding is z^c.

    Args:
        num_classes: Training classes; labels are 0 ... num_classes - 1.
        num_images: Number of training images, N, unreadable ones included.
        embedding_size: Width of each embedding. 128, from the authors' program, as all numbers
            here; where data sets differ, those for CUB.
        clusters: How many. 30; 150 for Cars and In-Shop, 50 for SOP.
        adversary_weight: ρ. 2500; 500 for Cars, 250 for SOP and In-Shop.
        shared_probability: p. 0.8; 0.5 for SOP.
        every: Epochs between two clusterings. 4: the program says 3 and counts to 4.
        noise: 0.2.
        center: "mean", the program's default, or "mean_and_deviation", which also divides by the
            deviation of the class, as the paper says.
        hidden: Width of R's layer. 512.
        margin: m. 0.2.
        beta: Start of β. 1.2.
        beta_factor: Multiple of the learning rate for β. 50.
        near: Smallest distance of the weights. 0.5.
        seed: Random seed of R, clusters, batches and pairs.
    """

    smallest_batch = (2, 2)
    cluster_of: Tensor  # (N,) cluster of each image, -1 for none

    def __init__(
        self,
        *,
        num_classes: int,
        num_images: int,
        embedding_size: int,
        clusters: int = 30,
        adversary_weight: float = 2500.0,
        shared_probability: float = 0.8,
        every: int = 4,
        noise: float = 0.2,
        center: Center = "mean",
        hidden: int = 512,
        margin: float = 0.2,
        beta: float = 1.2,
        beta_factor: float = 50.0,
        near: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.clusters = check_count(clusters, "clusters", at_least=2)
        self.every = check_count(every, "every")
        self.seed = seed
        self.adversary_weight = check_number(adversary_weight, "adversary_weight", at_least=0.0)
        self.shared_probability = check_number(
            shared_probability, "shared_probability", at_least=0.0, at_most=1.0
        )
        self.noise = check_number(noise, "noise", at_least=0.0, at_most=1.0)
        self.center = check_choice(center, "center", Center)
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.near = check_number(near, "near", above=0.0, at_most=2.0)
        self.beta_factor = check_number(beta_factor, "beta_factor", at_least=0.0)
        start = check_number(beta, "beta", above=0.0)
        self.class_beta = nn.Parameter(torch.full((num_classes,), start))
        self.shared_beta = nn.Parameter(torch.full((clusters,), start))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = (nn.Linear(embedding_size, hidden), nn.Linear(hidden, embedding_size))
        self.adversary = nn.Sequential(layers[0], nn.ReLU(), layers[1])
        self.register_buffer("cluster_of", torch.full((num_images,), -1))

    def heads(self, dim: int) -> tuple[Head, ...]:
        """The embedding, and the one of training alone.

        Args:
            dim: Width of each; 128 in the paper's tables.
        """
        return (Head(name="classes", dim=dim), Head(name="shared", dim=dim, weight=0.0))

    def check_images(self, class_sizes: NDArray[np.int64]) -> None:
        """Refuse more clusters than there are images."""
        self._check_count(int(class_sizes.sum()))

    def _check_count(self, images: int) -> None:
        if images < self.clusters:
            raise BadData(
                f"--method mic: {self.clusters} clusters of {images} images; use fewer, "
                f"--set method.clusters={max(2, images // 4)}"
            )

    def attach(self, model: Embedder) -> None:
        """Refuse a backbone whose first stage is not known."""
        super().attach(model)
        _first_stage(model)

    def parameter_groups(self) -> list[ParameterGroup]:
        """β without weight decay, and R with next to none."""
        betas = [self.class_beta, self.shared_beta]
        return [
            ParameterGroup("beta", betas, self.beta_factor, weight_decay=0.0),
            ParameterGroup("adversary", [*self.adversary.parameters()], weight_decay=1e-6),
        ]

    def before_epoch(self, view: TrainingView) -> EpochPlan:
        """Batches of classes, each perhaps followed by one of clusters."""
        fresh = bool((self.cluster_of < 0).all())
        if fresh or view.epoch % self.every == 0:
            self._cluster(view, fresh)
        generator = np.random.default_rng([self.seed, view.epoch])
        sampler, known = view.batches.sampler, view.batches.images.known_labels
        assert isinstance(sampler, ClassBalancedSampler)
        batches = sampler.plan(view.epoch)  # (S, B)
        shared, labels = self._shared_batches(sampler, view.epoch, batches.shape[1], generator)
        turns = []
        for number, batch in enumerate(batches):
            turns.append((batch, known[batch], CLASS))
            if generator.random() < self.shared_probability:
                turn = number % len(shared)
                turns.append((shared[turn], labels[turn], SHARED))
        indices, planned, streams = (np.stack(part) for part in zip(*turns, strict=True))
        sizes = np.bincount(self.cluster_of[self.cluster_of >= 0].cpu(), minlength=self.clusters)
        return EpochPlan(
            batches=EpochBatches(indices, planned, streams),
            metadata={"clusters": self.clusters, "alive": int((sizes > 0).sum())},
            text=f"{len(batches)} batches of classes, {len(turns) - len(batches)} of "
            f"{int((sizes > 0).sum())} clusters",
        )

    def _shared_batches(
        self, sampler: ClassBalancedSampler, epoch: int, size: int, generator: np.random.Generator
    ) -> tuple[Labels, Labels]:
        """Batches of the clusters, some images replaced, and the labels that they had. (S, B)"""
        clusters = self.cluster_of.cpu().numpy()
        members = np.flatnonzero(clusters >= 0)
        seed = (self.seed, epoch, SHARED)
        drawn = batches_of(members, clusters[members], sampler, size=size, seed=seed)
        replaced = generator.random(drawn.shape) < self.noise
        alive = np.unique(clusters[members])
        others = [members[clusters[members] == k] for k in alive]
        strange = generator.integers(len(alive), size=drawn.shape)
        draws = generator.random(drawn.shape)
        noisy = drawn.copy()
        for row, column in np.argwhere(replaced):
            choice = others[strange[row, column]]
            noisy[row, column] = choice[int(draws[row, column] * len(choice))]
        return noisy, clusters[drawn]

    def _cluster(self, view: TrainingView, fresh: bool) -> None:
        """Clusters of the first stage, without what tells classes apart, or of z^s."""
        readable = view.readable
        self._check_count(len(readable))
        vectors = view.embed(_Clustered(view.model, fresh=fresh))
        if fresh:
            labels = view.batches.images.known_labels[readable]
            vectors = centered(vectors, labels, deviation=self.center == "mean_and_deviation")

        def find() -> Tensor:
            seed = self.seed + view.epoch
            found = kmeans(vectors, self.clusters, iterations=_ITERATIONS, seed=seed)
            return torch.from_numpy(found.assignments)

        like = torch.zeros(len(readable), dtype=torch.int64)
        found = view.distributed.from_main_process(find, like)
        self.cluster_of.fill_(-1)
        self.cluster_of[readable] = found.to(self.cluster_of.device)

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a batch of classes or of clusters."""
        shared = batch.stream == SHARED
        rows = outputs.parts["shared" if shared else "classes"]
        beta = (self.shared_beta if shared else self.class_beta)[batch.labels]
        pairs = sampled_pairs(rows, batch, Draws(batch, self.seed), near=self.near)
        terms = {"margin": margin_loss(rows, *pairs, beta=beta, margin=self.margin)}
        total = terms["margin"]
        if self.adversary_weight:
            terms["adversary"] = decorrelation(
                outputs.parts["shared"], outputs.parts["classes"], self.adversary
            )
            total = total + self.adversary_weight * terms["adversary"]
        return StepLoss(total, terms)


def decorrelation(source: Tensor, target: Tensor, adversary: nn.Module) -> Tensor:
    """A, whose gradient is reversed for both embeddings but not for the adversary.

    Args:
        source: Unit vectors that the adversary reads. (B, D_s)
        target: Unit vectors that it predicts. (B, D_t)
        adversary: R.
    """
    predicted = functional.normalize(adversary(_reversed(source)), dim=1)
    return -(_reversed(target) * predicted).square().mean()


def centered(vectors: Vectors, labels: Labels, *, deviation: bool) -> Vectors:
    """The vectors minus the mean of their class, perhaps divided by its deviation. (N, C)

    Args:
        vectors: (N, C)
        labels: Class of each. (N,)
        deviation: Whether to divide; a deviation of zero leaves the number as it is.
    """
    found = vectors.copy()
    for label in np.unique(labels):
        own = labels == label
        found[own] -= found[own].mean(axis=0)
        if deviation:
            spread = found[own].std(axis=0)
            found[own] /= np.where(spread > 1e-6, spread, 1.0)
    return found


def pooled_places(features: Tensor) -> Tensor:
    """A map averaged in overlapping windows, as 56 × 56 places become 4 × 4. (B, C · places)

    Args:
        features: (B, C, H, W)
    """
    side = min(features.shape[2:])
    window, stride = (max(1, round(size * side / _PLACES)) for size in (_WINDOW, _STRIDE))
    return functional.avg_pool2d(features, window, stride).flatten(1)


def _reversed(values: Tensor) -> Tensor:
    """The same value with the opposite gradient."""
    return 2.0 * values.detach() - values


def _first_stage(model: Embedder) -> str:
    """The backbone's first stage, or its low level where stages have no name."""
    levels = find_backbone(model.backbone_name).levels
    if hasattr(model.backbone, _FIRST_STAGE):
        return _FIRST_STAGE
    if levels is None:
        raise BadData(
            f"--method mic: {model.backbone_name} has neither {_FIRST_STAGE!r} nor a known low "
            "level, whose map gives the first clusters; use another backbone"
        )
    return levels[0]


class _Clustered(nn.Module):
    """What images are clustered by: the pooled map of the first stage, or z^s."""

    def __init__(self, model: Embedder, *, fresh: bool) -> None:
        super().__init__()
        self.model, self.preprocessing = model, model.preprocessing
        self.part = f"map:{_first_stage(model)}" if fresh else None

    def forward(self, images: Tensor) -> Tensor:
        if self.part is None:
            return self.model.forward_outputs(images).parts["shared"]
        return pooled_places(self.model.forward_outputs(images, (self.part,)).parts[self.part])
