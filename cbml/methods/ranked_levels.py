"""RLL-(L,M,H): a ranked list loss at each of three depths."""

import torch

from cbml.losses import LOSSES
from cbml.methods.hdc import LEVEL_NAMES, level_heads
from cbml.models import Head
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, StepLoss


class RankedLevels(Method):
    """A ranked list loss at each of three depths, side by side at the end (Wang et al. 2019).

        loss      = L(low) + L(middle) + L(high),   L the loss "ranked_list"
        embedding = the three unit vectors, concatenated

    As the authors say on their poster, an image moves as an anchor alone: the gradient of a
    distance does not reach the other image.

    Args:
        boundary: α. 1.2, from the paper.
        margin: m. 0.4, from the paper.
        negative_temperature: T_N. 10, from the paper.
        gallery_gradient: Let the gradient reach the other image too.
    """

    smallest_batch = (2, 2)

    def __init__(
        self,
        *,
        boundary: float = 1.2,
        margin: float = 0.4,
        negative_temperature: float = 10.0,
        gallery_gradient: bool = False,
    ) -> None:
        super().__init__()
        self.level_loss = LOSSES["ranked_list"](
            boundary=boundary,
            margin=margin,
            negative_temperature=negative_temperature,
            gallery_gradient=gallery_gradient,
        )

    def heads(self, dim: int) -> tuple[Head, ...]:
        """Three levels of the backbone.

        Args:
            dim: Width of all together; 1536 in the paper's tables.
        """
        return level_heads(dim)

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The sum of the levels' losses."""
        terms = {name: self.level_loss(outputs.parts[name], batch.labels) for name in LEVEL_NAMES}
        return StepLoss(torch.stack([*terms.values()]).sum(), terms)
