"""A-BIER: BIER whose learners are kept independent by adversaries."""

import itertools
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cbml.methods.bier import BIER, LEARNERS
from cbml.models import Embedder
from cbml.training import ParameterGroup


class AdversarialBIER(BIER):
    """BIER with networks that predict one learner from another (Opitz et al. 2020).

    For learners i < j a network R_ij, d_j → hidden → ReLU → d_i, makes the product of its
    prediction with learner i large; the learners get the reversed gradient and make it small. With
    g as in `BIER`, and norms over what leaves each input of a layer, as in the authors' program:

        L_adv = -Σ_{i<j} mean (g_i R_ij(g_j))²
        L_w   = Σ mean (|w|² - 1)² over layers of adversaries and learners
                + Σ max(0, |b|² - 1) over those of adversaries
        loss  = L_disc + λ_div (L_adv + λ_w L_w)

    Args:
        scale: α. 2, from the authors' program, as all numbers here.
        threshold: β. 0.5.
        negative_cost: C. 25.
        boosting: "simple" or "gradient", as for `BIER`.
        shrinkage: η, as for `BIER`.
        independence: λ_div. 5e-5.
        weight_penalty: λ_w. 1e5.
        hidden: Width of the adversaries' layer. 512.
        seed: Random seed of the adversaries.
    """

    def __init__(
        self,
        *,
        scale: float = 2.0,
        threshold: float = 0.5,
        negative_cost: float = 25.0,
        boosting: Literal["simple", "gradient"] = "simple",
        shrinkage: float | None = None,
        independence: float = 5e-5,
        weight_penalty: float = 1e5,
        hidden: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__(
            scale=scale,
            threshold=threshold,
            negative_cost=negative_cost,
            boosting=boosting,
            shrinkage=shrinkage,
            independence=independence,
            weight_penalty=weight_penalty,
        )
        self.hidden, self.seed = hidden, seed
        self.adversaries = nn.ModuleList()

    def attach(self, model: Embedder) -> None:
        """Build an adversary for each pair of learners."""
        super().attach(model)
        if len(self.adversaries):
            return
        widths = [len(self._layer(name)) for name in LEARNERS]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for first, second in itertools.combinations(widths, 2):
                layers = (nn.Linear(second, self.hidden), nn.ReLU(), nn.Linear(self.hidden, first))
                self.adversaries.append(nn.Sequential(*layers))
        self.to(self._layer(LEARNERS[0]).device)

    def parameter_groups(self) -> list[ParameterGroup]:
        """The adversaries, without weight decay."""
        return [ParameterGroup("adversaries", [*self.adversaries.parameters()], weight_decay=0.0)]

    def auxiliary(self, features: Tensor, layers: list[Tensor]) -> Tensor:
        """L_adv + λ_w L_w."""
        outputs = [_Reversed.apply(features @ layer.T) for layer in layers]
        pairs = itertools.combinations(outputs, 2)
        found = [
            adversarial_loss(first, second, adversary)
            for (first, second), adversary in zip(pairs, self.adversaries, strict=True)
        ]
        linear = [layer for layer in self.adversaries.modules() if isinstance(layer, nn.Linear)]
        weights = [*layers, *(layer.weight for layer in linear)]
        lengths = [(weight.square().sum(dim=0) - 1.0).square().mean() for weight in weights]
        biases = [(layer.bias.square().sum() - 1.0).clamp(min=0.0) for layer in linear]
        return torch.stack(found).sum() + self.weight_penalty * torch.stack(lengths + biases).sum()


def adversarial_loss(first: Tensor, second: Tensor, adversary: nn.Module) -> Tensor:
    """-mean (g_i R(g_j))².

    Args:
        first: Outputs of learner i, reversed. (B, d_i)
        second: Outputs of learner j, reversed. (B, d_j)
        adversary: R.
    """
    predicted: Tensor = adversary(second)
    return -(first * predicted).square().mean()


class _Reversed(torch.autograd.Function):
    """The same value, with the opposite gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]
