"""What methods without labels share: whitened starts, a memory of all images, a linear map."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.index import Index
from cbml.losses import check_number
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, TrainingView

HeadStart = Literal["random", "whitened"]
Vectors = NDArray[np.float32]
Embed = Callable[[nn.Module], Vectors]

# Directions with less of the variance than this are rounding.
_NOISE = 1e-7
# Whitened in as many directions as there are images, all images are equally far from each other.
_IMAGES_PER_DIRECTION = 8
COMPARED = 5  # nearest neighbors by which a model is judged
_JUDGES = 2000  # images
_MIDDLE = 0.7  # of an image's area


def directions_of(images: int, most: int) -> int:
    """How many directions so many images can be whitened in.

    Args:
        images: Number of images.
        most: As many as are wanted at most.
    """
    return min(most, max(2, images // _IMAGES_PER_DIRECTION))


def whitening(vectors: Vectors, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The linear map W x + b onto principal directions, each divided by its deviation.

    With μ the mean and (λ_k, v_k) the largest eigenvalues and eigenvectors of the covariance:

        (W x + b)_k = v_k·(x - μ) / √λ_k

    At most `dim` directions are kept, and one for every eight vectors.
    """
    mean = vectors.mean(axis=0, dtype=np.float64)
    centered = vectors - mean
    values, directions = np.linalg.eigh(centered.T @ centered / len(vectors))  # ascending
    kept = np.flatnonzero(values > _NOISE * max(values[-1], 1e-12))
    kept = kept[-directions_of(len(vectors), dim) :]
    weight = (directions[:, kept] / np.sqrt(values[kept])).T  # (K, C)
    return weight, -weight @ mean


def whitened(vectors: Vectors, dim: int) -> Vectors:
    """Whitened vectors of unit length, from at most `dim` directions.

    Args:
        vectors: Vectors of any length. (N, C)
        dim: Most directions that are kept.
    """
    weight, bias = whitening(vectors, dim)
    if not len(weight):
        return vectors  # all alike: nothing to take apart
    turned = vectors @ weight.T + bias
    lengths = np.linalg.norm(turned, axis=1, keepdims=True)
    unit: Vectors = (turned / np.maximum(lengths, 1e-12)).astype(np.float32)
    unit[lengths[:, 0] <= 1e-12, 0] = 1.0  # at the mean there is no direction; any will do
    return unit


class _Homogeneous(nn.Module):
    """Vectors with a one behind them: their length survives the division by it in `embed`."""

    def __init__(self, model: Embedder, *, head: bool) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.preprocessing = model.preprocessing

    def forward(self, images: Tensor) -> Tensor:
        vectors = self.model.features(images)
        if self.head:
            vectors = self.model.head(vectors)
        return torch.cat([vectors, torch.ones_like(vectors[:, :1])], dim=1)


def image_features(model: Embedder, embed: Embed) -> Vectors:
    """Features of images before the linear layer, as long as they come. (N, C)

    Args:
        model: The model whose features they are.
        embed: Gives the unit vectors of these images by a network.
    """
    return _dehomogenized(embed(_Homogeneous(model, head=False)))


def head_outputs(model: Embedder, embed: Embed) -> Vectors:
    """What the linear layer gives for images, before the division by its length. (N, D)"""
    return _dehomogenized(embed(_Homogeneous(model, head=True)))


def _dehomogenized(vectors: Vectors) -> Vectors:
    plain: Vectors = vectors[:, :-1] / vectors[:, -1:]
    return plain


def start_head(model: Embedder, embed: Embed) -> None:
    """Let the linear layer whiten the features of images, instead of mixing them at random.

    Where images are too few for as many directions as the embedding is wide, the rest starts at
    zero. Images that are all alike have none, and the layer stays as it is.

    Args:
        model: Before its first step.
        embed: Gives the unit vectors of the images by a network, such as `TrainingView.embed`.
    """
    if not isinstance(model.head, nn.Linear):
        raise BadData("head_start=whitened: needs a model with one linear layer; use random")
    whiten_head(model.head, image_features(model, embed))


def whiten_head(head: nn.Linear, features: Vectors) -> None:
    """Let the linear layer whiten these features. (N, C)"""
    weight, bias = whitening(features, head.out_features)
    if not len(weight):
        return
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.weight[: len(weight)] = torch.from_numpy(weight).to(head.weight)
        head.bias[: len(bias)] = torch.from_numpy(bias).to(head.bias)


class Unlabeled(Method):
    """What methods without labels share: how the linear layer starts, and how a model is judged.

    `view_agreement` is the share of an image's nearest neighbors that another view of it has too:
    the middle of the image, mirrored unless the training never mirrors. It rises while a network
    learns what its images are and falls when it forgets, also where all of them become alike.

    Args:
        loss: As for `Method`.
        head_start: "whitened" lets the linear layer start as the whitening of the training
            images' features; "random" leaves it as it is.
    """

    judged_by: tuple[str, ...] = ("view_agreement",)

    def __init__(self, loss: nn.Module | None = None, *, head_start: HeadStart = "random") -> None:
        super().__init__(loss)
        self.head_start = head_start

    def start(self, view: TrainingView) -> None:
        """Let the linear layer whiten the features, if asked."""
        if self.head_start == "whitened":
            start_head(view.model.at_crop(view.batches.transform.crop), view.embed)

    def judge(self, view: TrainingView) -> Mapping[str, float]:
        """How steady the neighbors of some of the training images are."""
        chance = np.random.default_rng(0)  # the same images at every step
        chosen = np.sort(chance.permutation(view.readable)[:_JUDGES])
        model = view.model.at_crop(view.batches.transform.crop)
        other = _OtherView(model, mirror=view.batches.transform.flip > 0)
        vectors, others = (view.embed(network, indices=chosen) for network in (model, other))
        expected = nearest_others(vectors, COMPARED)
        # From the last to the first: of images that are all alike each search finds others.
        found = nearest_others(vectors[::-1], COMPARED, queries=others[::-1])
        return {"view_agreement": shared_neighbors(expected, len(vectors) - 1 - found[::-1])}


class _OtherView(nn.Module):
    """A model that sees the middle of an image, 0.7 of its area, mirrored if asked."""

    def __init__(self, model: Embedder, *, mirror: bool) -> None:
        super().__init__()
        self.model, self.mirror, self.preprocessing = model, mirror, model.preprocessing

    def forward(self, images: Tensor) -> Tensor:
        """Unit vectors. (B, D)"""
        side = images.shape[-1]
        edge = round(side * (1 - math.sqrt(_MIDDLE)) / 2)
        middle = images[..., edge : side - edge, edge : side - edge]
        seen = functional.interpolate(middle, size=(side, side), mode="bilinear")
        return cast(Tensor, self.model(seen.flip(-1) if self.mirror else seen))


def nearest_others(
    vectors: Vectors,
    count: int,
    *,
    of: NDArray[np.int64] | None = None,
    queries: Vectors | None = None,
) -> NDArray[np.int64]:
    """The nearest other vectors of each, or of some. (N, min(count, N - 1))

    Args:
        of: Some of them; None for all.
        queries: What is compared with the vectors in place of those themselves. (N, D)
    """
    own = np.arange(len(vectors)) if of is None else of
    index = Index(vectors.shape[1])
    index.add(vectors)
    count = min(count, len(vectors) - 1)
    found = index.search((vectors if queries is None else queries)[own], count + 1).ids
    # Itself is mostly the first, but a twin may come before it: whoever it is goes to the end.
    order = np.argsort(found == own[:, None], axis=1, kind="stable")
    kept: NDArray[np.int64] = np.take_along_axis(found, order, axis=1)[:, :count]
    return kept


def shared_neighbors(expected: NDArray[np.int64], found: NDArray[np.int64]) -> float:
    """The mean share of each row that the same row of the other has, too. (N, K) each"""
    return float((found[:, :, None] == expected[:, None, :]).any(axis=2).mean())


class Memory(nn.Module):
    """One vector for each image, M, that follows its embeddings at a distance.

        M starts uniform in ±√(3 / D);   write:  M_y <- normalize(m M_y + (1 - m) x)

    Of an image that comes more than once the last row is written. Methods write after an update and
    never within a loss, so that a skipped update leaves the memory alone and every process writes
    the same.

    Args:
        images: How many, N, those that cannot be read included.
        dim: Width of the embeddings, D.
        momentum: What stays of the old vector, m.
        seed: Random seed of the start.
    """

    vectors: Tensor  # (N, D)

    def __init__(self, images: int, dim: int, *, momentum: float, seed: int) -> None:
        super().__init__()
        self.momentum = check_number(momentum, "memory_momentum", at_least=0.0, at_most=1.0)
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(images, dim, generator=generator) * 2 - 1
        self.register_buffer("vectors", uniform * math.sqrt(3 / dim))

    def similarities(self, embeddings: Tensor) -> Tensor:
        """Inner products with all vectors; the gradient reaches the embeddings alone. (B, N)"""
        return embeddings.float() @ self.vectors.T

    @torch.no_grad()
    def write(self, indices: Tensor, embeddings: Tensor) -> None:
        """Move the vectors of these images towards their embeddings."""
        order = torch.arange(len(indices), device=indices.device)
        last = torch.zeros(len(self.vectors), dtype=order.dtype, device=order.device)
        last.scatter_reduce_(0, indices, order, "amax")
        once = last[indices] == order
        indices, embeddings = indices[once], embeddings[once].float()
        mixed = self.momentum * self.vectors[indices] + (1 - self.momentum) * embeddings
        self.vectors[indices] = functional.normalize(mixed, dim=1)


class Projection(Unlabeled):
    """A method that learns L of L'x, x the features of unit length, as the model's linear layer.

    Its authors compare by the distance |L'(x - y)|, which no shift changes; the model compares by
    cosines, which one does. The layer's bias is therefore kept at -L'c, c the mean feature of the
    images before the first step.

    Args:
        head_start: "random", or "whitened": the principal directions of the features.
    """

    parts = ("features",)

    center: Tensor  # (C,)

    def __init__(self, *, head_start: HeadStart = "random") -> None:
        super().__init__(head_start=head_start)
        self.register_buffer("center", torch.zeros(0))

    def attach(self, model: Embedder) -> None:
        """Meet the model, whose features tell how wide L is."""
        if not isinstance(model.head, nn.Linear):
            raise BadData(f"{type(self).__name__}: needs a model with one linear layer")
        super().attach(model)
        self.center = torch.zeros(model.head.in_features, device=model.head.weight.device)

    @property
    def projection(self) -> Tensor:
        """L', the weight of the model's linear layer. (D, C)"""
        weight: Tensor = self.model.head.weight  # type: ignore[assignment]
        return weight

    def start(self, view: TrainingView) -> None:
        """Make the columns of L orthonormal, and let the bias subtract the mean feature.

        A whitening start becomes the principal directions: divided by their deviations they would
        be far from what either method calls a good L.
        """
        super().start(view)
        features = image_features(view.model, view.embed)
        self.center.copy_(torch.from_numpy(features.mean(axis=0)))
        self.orthonormalize()
        self.settle()

    @torch.no_grad()
    def orthonormalize(self) -> None:
        """Make the columns of L orthonormal; those of a good L stay as they are."""
        turned, upper = torch.linalg.qr(self.projection.T.double())
        signs = torch.where(upper.diagonal() < 0, -1.0, 1.0)
        self.projection.copy_((turned * signs).T)

    @torch.no_grad()
    def settle(self) -> None:
        """Bring the linear layer back to where the method allows it to be."""
        bias: Tensor = self.model.head.bias  # type: ignore[assignment]
        bias.copy_(-self.projection @ self.center)

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        """Bring the linear layer back after an update."""
        del view, outputs, batch
        self.settle()

    def unit_features(self, outputs: Outputs) -> Tensor:
        """x, the positive part of the pooled features, of unit length. (B, C)"""
        return functional.normalize(functional.relu(outputs.parts["features"].float()), dim=1)


def angular_factor(alpha: float) -> float:
    """4 tan²(alpha), alpha in degrees."""
    if not 0 < alpha < 90:
        raise ValueError(f"alpha must be between 0 and 90 degrees, got {alpha}")
    return 4 * float(torch.tan(torch.deg2rad(torch.tensor(alpha, dtype=torch.float64))) ** 2)
