"""From a map of features to one vector of features."""

import torch
from torch import Tensor, nn

from cbml.errors import BadData

POOLINGS = ("average", "max", "average_max", "generalized_mean", "backbone")


class GeneralizedMean(nn.Module):
    """Generalized-mean (GeM) pooling: between the average (p = 1) and the maximum (p -> ∞).

        pooled_c = (mean_{h,w} max(x_chw, floor)^p)^{1/p}

    Args:
        power: p, the start value; it is learnt. 3 is the value of the GeM paper (Radenović 2018).
        floor: smallest feature value, so that the root has a gradient.
    """

    def __init__(self, *, power: float = 3.0, floor: float = 1e-6) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor([power]))
        self.floor = floor

    def forward(self, features: Tensor) -> Tensor:
        """The pooled features, (B, C, H, W) -> (B, C).

        Args:
            features: the map, float32: powers of half-precision numbers overflow.
        """
        raised = features.clamp(min=self.floor).pow(self.power)
        return raised.mean((-2, -1)).pow(1 / self.power)


def pool(features: Tensor, kind: str) -> Tensor:
    """Average, maximum or their sum over the places of a map, (B, C, H, W) -> (B, C).

    Args:
        features: the map.
        kind: "average", "max" or "average_max".
    """
    if kind == "average":
        return features.mean((-2, -1))
    if kind == "max":
        return features.amax((-2, -1))
    if kind == "average_max":
        return features.mean((-2, -1)) + features.amax((-2, -1))
    raise BadData(f"pooling {kind!r}: use one of {', '.join(POOLINGS)}")
