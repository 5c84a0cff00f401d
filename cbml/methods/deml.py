"""DeML: networks that look closer and closer, each with attentions that are pushed apart."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses import LOSSES, check_number
from cbml.models import ChannelAttention
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, StepLoss


class DeML(Method):
    """Decoupled attentions with a binomial deviance each (Chen and Deng 2019).

    The first of I networks sees the image, the second a crop of it to the object that the first
    map shows, the third a crop of that crop; see `cbml.models.object_attention`. In each of them,
    with u_j the unit vectors of attention j of J, W the layer that they share, d its rows, and x
    the features of the first attention, which take no gradient here:

        L_bin = 1/J Σ_j (mean_P softplus(-α (s_j - β)) + mean_N softplus(α C (s_j - β)))
        L_dec = Σ_{j<k} 1/(2B) Σ_i max(0, 2 - |u_j,i - u_k,i|)²
        L_act = 1/(B d) Σ_i |W x_i|² + 1/(2d) Σ_r (|row r of W|² - 1)²
        loss  = Σ over the networks of L_bin + λ_dec L_dec + λ_act L_act

    The embedding is all I J unit vectors side by side.

    Args:
        streams: I. 3, from the authors' program, as all numbers here; 1 for a third of the cost.
        attentions: J. 3.
        hidden: Channels within an attention. 64.
        tap: Where the attentions stand: "low" or "middle", a level of the backbone. The authors'
            place, behind inception 4b of GoogLeNet, lies between the two.
        scale: α. 2.
        threshold: β. 0.5.
        negative_cost: C. 35.
        decoupling: λ_dec. 0.2.
        activity: λ_act. 0.014.
    """

    smallest_batch = (2, 2)

    def __init__(
        self,
        *,
        streams: int = 3,
        attentions: int = 3,
        hidden: int = 64,
        tap: str = "middle",
        scale: float = 2.0,
        threshold: float = 0.5,
        negative_cost: float = 35.0,
        decoupling: float = 0.2,
        activity: float = 0.014,
    ) -> None:
        super().__init__()
        self.head = ChannelAttention(tap=tap, count=attentions, hidden=hidden, streams=streams)
        self.attentions = attentions
        further = [f"stream_{number}" for number in range(2, streams + 1)]
        self.parts = ("features", *(f"features:{name}" for name in further))
        self.layers = ("head.linear", *(f"streams.{name}.head.linear" for name in further))
        self.pair_loss = LOSSES["binomial_deviance"](
            scale=scale, threshold=threshold, negative_cost=negative_cost
        )
        self.decoupling = check_number(decoupling, "decoupling", at_least=0.0)
        self.activity = check_number(activity, "activity", at_least=0.0)

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The losses of the attentions, and what keeps them apart."""
        rows = [part for name, part in outputs.parts.items() if name.startswith("attention_")]
        each = [
            self._stream(
                rows[number : number + self.attentions],
                outputs.parts[part].detach(),
                self.model.get_parameter(f"{layer}.weight"),
                batch.labels,
            )
            for number, part, layer in zip(
                range(0, len(rows), self.attentions), self.parts, self.layers, strict=True
            )
        ]
        terms = {name: torch.stack([one[name] for one in each]).sum() for name in each[0]}
        total = terms["binomial"] + self.decoupling * terms["decoupling"]
        return StepLoss(total + self.activity * terms["activity"], terms)

    def _stream(
        self, rows: Sequence[Tensor], features: Tensor, weight: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """The terms of one network.

        Args:
            rows: Unit vectors of its attentions. (B, d) each
            features: Of the first of them. (B, C)
            weight: W. (d, C)
        """
        apart = [decoupled(*pair) for pair in itertools.combinations(rows, 2)]
        return {
            "binomial": torch.stack([self.pair_loss(each, labels) for each in rows]).mean(),
            "decoupling": torch.stack(apart).sum() if apart else rows[0].new_zeros(()),
            "activity": active(features, weight),
        }


def decoupled(first: Tensor, second: Tensor) -> Tensor:
    """1/(2B) Σ_i max(0, 2 - |u_i - v_i|)².

    Args:
        first: Unit vectors u. (B, d)
        second: Unit vectors v, perhaps narrower. (B, d')
    """
    second = functional.pad(second, (0, first.shape[1] - second.shape[1]))
    # Equal vectors have no direction to leave each other in.
    distance = (first - second).square().sum(dim=1).clamp(min=1e-12).sqrt()
    return (2.0 - distance).clamp(min=0.0).square().mean() / 2.0


def active(features: Tensor, weight: Tensor) -> Tensor:
    """L_act, of features x (B, C) and a layer W (d, C)."""
    outputs = nn.functional.linear(features, weight)
    lengths = weight.square().sum(dim=1)
    return outputs.square().mean() + (lengths - 1.0).square().mean() / 2.0
