"""A method attached to a model whose linear layer is given."""

from typing import TypeVar

import torch
from torch import nn

from cbml.methods.unlabeled import Projection
from cbml.models import Embedder

Kind = TypeVar("Kind", bound=Projection)


class _Plain(Embedder):
    """A linear layer in the place of a whole model."""

    def __init__(self, weight: torch.Tensor) -> None:
        nn.Module.__init__(self)
        self.head = nn.Linear(weight.shape[1], weight.shape[0])
        self.head.weight = nn.Parameter(weight.clone())
        self.heads, self.dim = (), weight.shape[0]


def attached(method: Kind, projection: list[list[float]]) -> Kind:
    """The method with L' as given, (D, C)."""
    method.attach(_Plain(torch.tensor(projection)))
    return method
