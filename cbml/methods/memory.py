"""A memory of one vector for each training image, and the start that methods without labels share.

A memory is written after an update and never within a loss, so that a skipped update leaves it
alone and every process writes the same.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses import check_number
from cbml.methods.whitening import start_head
from cbml.training import Method, TrainingView

HeadStart = Literal["random", "whitened"]


class Unlabeled(Method):
    """What methods without labels share: how the linear layer of the model starts.

    Args:
        head_start: "whitened" lets the linear layer start as the whitening of the training
            images' features; "random" leaves it as it is.
    """

    def __init__(self, *, head_start: HeadStart = "random") -> None:
        super().__init__()
        self.head_start = head_start

    def start(self, view: TrainingView) -> None:
        """Let the linear layer whiten the features, if asked."""
        if self.head_start == "whitened":
            start_head(view.model, view.embed)


class Memory(nn.Module):
    """One vector for each image, M, that follows its embeddings at a distance.

        M starts uniform in ±√(3 / D);   write:  M_y <- normalize(m M_y + (1 - m) x)

    Of an image that comes more than once the last row is written.

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
