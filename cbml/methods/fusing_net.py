"""Fusing-Net, a reconstruction: a histogram of colors joins the features of the network."""

import torch
from torch import nn
from torch.nn import functional

from cbml.losses import LOSSES, check_number
from cbml.models import ColorFusion
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, StepLoss


class FusingNet(Method):
    """Color histograms fused with features, and several losses; after Kan et al. 2019.

    A reconstruction: no equation of the authors is public. Known are a handcrafted histogram of
    HSV colors with roots, a unit that fuses it with the features of GoogLeNet, and a sum of losses,
    one of them of classes. With z the fused unit vectors, z' those of the network alone (see
    `cbml.models.head_kinds`), A a vector for each class, and L lifted structure:

        loss = L(z) + μ_1 CE(A z, y) + μ_2 L(z')

    Args:
        width: Width of the layer where colors and features meet. 512, our choice, as all numbers
            here.
        class_weight: μ_1. 1.
        network_weight: μ_2, which keeps the network able to stand alone. 1.
        num_classes: How many there are to train on.
        embedding_size: Width of the embedding.
    """

    smallest_batch = (2, 2)

    def __init__(
        self,
        *,
        width: int = 512,
        class_weight: float = 1.0,
        network_weight: float = 1.0,
        num_classes: int = 2,
        embedding_size: int = 512,
    ) -> None:
        super().__init__()
        self.head = ColorFusion(width=width)
        self.pair_loss = LOSSES["lifted_structure"]()
        self.class_weight = check_number(class_weight, "class_weight", at_least=0.0)
        self.network_weight = check_number(network_weight, "network_weight", at_least=0.0)
        self.classifier = nn.Parameter(torch.zeros(num_classes, embedding_size))

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The sum of the three losses."""
        fused = outputs.parts["fused"]
        terms = {
            "pairs": self.pair_loss(fused, batch.labels),
            "classes": functional.cross_entropy(fused @ self.classifier.T, batch.labels),
            "network": self.pair_loss(outputs.parts["network"], batch.labels),
        }
        total = terms["pairs"] + self.class_weight * terms["classes"]
        return StepLoss(total + self.network_weight * terms["network"], terms)
