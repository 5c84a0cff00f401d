"""Directions that all pictures share, or in which they differ most, made to count no more."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.models import Embedder
from cbml.training import Team
from cbml.training.assembly import Shelf

__all__ = ["picture_features", "start_head", "whitened", "whitening"]

Rows = NDArray[np.float32]

# Directions with less of the variance than this are rounding.
_NOISE = 1e-7


def whitening(rows: Rows, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The linear map W x + b onto principal directions, each divided by its deviation.

    With μ the mean row and (λ_k, v_k) the largest eigenvalues and vectors of the covariance:

        (W x + b)_k = v_k·(x - μ) / √λ_k

    Args:
        rows: (N, C).
        dim: how many directions to keep; fewer where there are fewer.
    """
    mean = rows.mean(axis=0, dtype=np.float64)
    centred = rows - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / len(rows))  # ascending
    kept = np.flatnonzero(values > _NOISE * max(values[-1], 1e-12))[-dim:]
    weight = (vectors[:, kept] / np.sqrt(values[kept])).T  # (K, C)
    return weight, -weight @ mean


def whitened(rows: Rows, dim: int) -> Rows:
    """Whitened rows of unit length.

    Args:
        rows: (N, C).
        dim: how many directions to keep; fewer where there are fewer.
    """
    weight, bias = whitening(rows, dim)
    if not len(weight):
        return rows  # all alike: nothing to take apart
    turned = rows @ weight.T + bias
    lengths = np.linalg.norm(turned, axis=1, keepdims=True)
    unit: Rows = (turned / np.maximum(lengths, 1e-12)).astype(np.float32)
    unit[lengths[:, 0] <= 1e-12, 0] = 1.0  # at the mean there is no direction; any will do
    return unit


class _Homogeneous(nn.Module):
    """Features with a one behind them: their length survives the division by it in `embed`."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.model = model
        self.preprocessing = model.preprocessing

    def forward(self, pictures: Tensor) -> Tensor:
        features = self.model.features(pictures)
        return torch.cat([features, torch.ones_like(features[:, :1])], dim=1)


def picture_features(model: Embedder, shelf: Shelf, team: Team) -> Rows:
    """Features of all readable pictures before the linear layer, as long as they come. (N, C)

    Args:
        model: any embedder.
        shelf: the pictures.
        team: shares the work; each process gets all rows.
    """
    rows = shelf.embedded(_Homogeneous(model), team)
    features: Rows = rows[:, :-1] / rows[:, -1:]
    return features


def start_head(model: Embedder, shelf: Shelf, team: Team) -> None:
    """Let the linear layer whiten the features of the pictures, instead of mixing them at random.

    Where there are fewer directions than the embedding is wide, the rest starts at zero. Pictures
    that are all alike have none, and the layer stays as it is.

    Args:
        model: before its first step.
        shelf: the pictures.
        team: shares the work.
    """
    weight, bias = whitening(picture_features(model, shelf, team), model.dim)
    if not len(weight):
        return
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
        model.head.weight[: len(weight)] = torch.from_numpy(weight).to(model.head.weight)
        model.head.bias[: len(bias)] = torch.from_numpy(bias).to(model.head.bias)
