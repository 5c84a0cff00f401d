"""Directions that all images share, or in which they differ most, made to count no more."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.errors import BadData
from cbml.models import Embedder

Vectors = NDArray[np.float32]
Embed = Callable[[nn.Module], Vectors]

# Directions with less of the variance than this are rounding.
_NOISE = 1e-7


def whitening(vectors: Vectors, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The linear map W x + b onto principal directions, each divided by its deviation.

    With μ the mean and (λ_k, v_k) the largest eigenvalues and eigenvectors of the covariance:

        (W x + b)_k = v_k·(x - μ) / √λ_k

    At most `dim` directions are kept, fewer where there are fewer.
    """
    mean = vectors.mean(axis=0, dtype=np.float64)
    centered = vectors - mean
    values, directions = np.linalg.eigh(centered.T @ centered / len(vectors))  # ascending
    kept = np.flatnonzero(values > _NOISE * max(values[-1], 1e-12))[-dim:]
    weight = (directions[:, kept] / np.sqrt(values[kept])).T  # (K, C)
    return weight, -weight @ mean


def whitened(vectors: Vectors, dim: int) -> Vectors:
    """Whitened vectors of unit length, from at most `dim` directions."""
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

    `embed` gives the unit vectors of these images by a network.
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

    Where there are fewer directions than the embedding is wide, the rest starts at zero. Images
    that are all alike have none, and the layer stays as it is.

    Args:
        model: Before its first step.
        embed: Gives the unit vectors of the images by a network, such as `TrainingView.embed`.
    """
    head = model.head
    if not isinstance(head, nn.Linear):
        raise BadData("head_start=whitened: needs a model with one linear layer; use random")
    weight, bias = whitening(image_features(model, embed), model.dim)
    if not len(weight):
        return
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.weight[: len(weight)] = torch.from_numpy(weight).to(head.weight)
        head.bias[: len(bias)] = torch.from_numpy(bias).to(head.bias)
