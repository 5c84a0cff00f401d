"""A loss whose options are estimated anew with the labels, and class vectors that follow them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["StagedLoss", "move_class_vectors"]


class StagedLoss(nn.Module):
    """A loss that can be made again with other options; they are part of its state.

    Args:
        make: gives the loss for some options; it must have no parameters, which would be lost.
    """

    def __init__(self, make: Callable[[Mapping[str, Any]], nn.Module]) -> None:
        super().__init__()
        self.make = make
        self.options: dict[str, Any] = {}
        self.current = make({})
        if any(True for _ in self.current.parameters()):
            raise ValueError("a loss with parameters cannot be made anew while it is trained")

    def renew(self, options: Mapping[str, Any]) -> None:
        """Go on with other options.

        Args:
            options: by name, plain values.
        """
        self.options = dict(options)
        self.current = self.make(self.options)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The present loss of a batch.

        Args:
            embeddings: one row per picture. (B, D)
            labels: one integer per row. (B,)
        """
        value: Tensor = self.current(embeddings, labels)
        return value

    @property
    def terms(self) -> Any:
        """The method of the present loss that tells its parts; None where it has none."""
        return getattr(self.current, "terms", None)

    def get_extra_state(self) -> Tensor:
        """The options as the bytes of a JSON text: a checkpoint holds tensors."""
        return torch.tensor(list(json.dumps(self.options).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on with the options that a checkpoint holds.

        Args:
            state: as `get_extra_state` gave it.
        """
        self.renew(json.loads(bytes(state.tolist())))


def move_class_vectors(
    loss: nn.Module, rows: NDArray[np.float32], labels: NDArray[np.int64], clusters: int
) -> None:
    """Put the vectors that a loss keeps for its classes where the clusters now are.

    A parameter of the shape K × D or D × K is taken to hold them. Where K equals D nothing says
    which it is, and it stays as it is; so do those of empty clusters.

    Args:
        loss: with proxies or a classifier, or without.
        rows: unit vectors of the pictures. (N, D)
        labels: of the rows. (N,)
        clusters: K.
    """
    sums = torch.zeros(clusters, rows.shape[1])
    sums.index_add_(0, torch.from_numpy(labels), torch.from_numpy(rows))
    alive = torch.from_numpy(np.bincount(labels, minlength=clusters) > 0)
    centers = functional.normalize(sums, dim=1)
    for parameter in loss.parameters():
        if clusters == rows.shape[1]:
            continue
        if parameter.shape == centers.shape:
            parameter.data[alive] = centers[alive].to(parameter)
        elif parameter.shape == centers.T.shape:
            parameter.data[:, alive] = centers[alive].T.to(parameter)
