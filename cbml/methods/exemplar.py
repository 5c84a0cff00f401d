"""Examplar: every image is a class of a linear classifier that is thrown away."""

import torch
from torch import nn
from torch.nn import functional

from cbml.methods.unlabeled import HeadStart, Unlabeled
from cbml.outputs import Outputs
from cbml.training import BatchInfo, ParameterGroup, StepLoss


class Exemplar(Unlabeled):
    """Exemplar-CNN (Dosovitskiy et al., TPAMI 2016); the paper's tables print it as Examplar.

    With f the vector that the model's linear layer gives, before the division by its length, and
    y the index of its image among N:

        z = W f + b,   loss = mean_i [ logsumexp_c z_ic - z_i,y ]

    W and b have no weight decay: most of their rows have next to no gradient in a step, and would
    shrink although their images were never seen. No program of the rows in the tables is public.

    Args:
        num_images: Number of training images, N.
        embedding_size: Width of the embedding, D.
        head_start: "random" or "whitened", how the model's linear layer starts.
        seed: Random seed of W, which starts normal with a deviation of 0.01, as DeepCluster's.
    """

    parts = ("raw",)

    def __init__(
        self,
        *,
        num_images: int,
        embedding_size: int,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        generator = torch.Generator().manual_seed(seed)
        weight = torch.empty(num_images, embedding_size).normal_(0, 0.01, generator=generator)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(num_images))

    def parameter_groups(self) -> list[ParameterGroup]:
        """The classifier, without weight decay."""
        return [ParameterGroup("classifier", [self.weight, self.bias], weight_decay=0.0)]

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step."""
        logits = functional.linear(outputs.parts["raw"], self.weight, self.bias)  # (B, N)
        return StepLoss(functional.cross_entropy(logits, batch.indices.to(logits.device)))
