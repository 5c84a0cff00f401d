"""BIER: learners of growing width on one feature, each boosted by what those before it miss.

A-BIER keeps them independent by adversaries.
"""

import itertools
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData, check_choice
from cbml.losses import check_number
from cbml.models import Embedder, Head
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, ParameterGroup, StepLoss

#: The parts in the order in which they are boosted.
LEARNERS = ("first", "second", "third")
_SHARES = (3, 5, 8)  # of 16: 96, 160 and 256 of 512


class BIER(Method):
    """Boosted learners with a binomial deviance, kept independent (Opitz et al. 2017).

    With D_m the similarities of learner m's unit vectors, m_ij = 1 for pairs of one class and -C
    for others, and W_ij one over the number of pairs of its kind, an image with itself included in
    the count and left out of the sum:

        L_disc = 1/M Σ_m Σ_{i≠j} W_ij w_m,ij log(1 + exp(-α (D_m,ij - β) m_ij)),   w_1 = 1
        "simple":    a_0 = ½,  a_m = a_{m-1} + η α (D_m - β) m
                     w_{m+1} = sigmoid(-a_m), twice that for pairs of two classes
        "gradient":  S_0 = 0,  S_m = (1 - ν_m) S_{m-1} + ν_m η D_m,  ν_m = 2 / (m + 1)
                     w_{m+1} = sigmoid(-α (S_m - β) m)

    and g_m = W_m h what the weights of learner m's layer make of features h that take no gradient:

        L_act = Σ_{m<m'} mean(g_m² g_m'²) + λ_w Σ_m mean_u (|row u of W_m|² - 1)²
        loss  = L_disc + λ_div L_act

    The weights w take no gradient. The embedding is the concatenation of the learners' unit
    vectors, each times its share of the width.

    Args:
        scale: α. 2, from the authors' program, as all numbers here.
        threshold: β. 0.5.
        negative_cost: C. 25.
        boosting: "simple", the program's default, or "gradient", the paper's.
        shrinkage: η; None takes 0.06 for "simple" and 1 for "gradient".
        independence: λ_div. 0, the program's default.
        weight_penalty: λ_w. 100.
    """

    smallest_batch = (2, 2)
    parts = ("features",)

    def __init__(
        self,
        *,
        scale: float = 2.0,
        threshold: float = 0.5,
        negative_cost: float = 25.0,
        boosting: Literal["simple", "gradient"] = "simple",
        shrinkage: float | None = None,
        independence: float = 0.0,
        weight_penalty: float = 100.0,
    ) -> None:
        super().__init__()
        self.boosting = check_choice(boosting, "boosting", ("simple", "gradient"))
        if shrinkage is None:
            shrinkage = 0.06 if self.boosting == "simple" else 1.0
        self.shrinkage = check_number(shrinkage, "shrinkage", at_least=0.0)
        self.scale = check_number(scale, "scale", above=0.0)
        self.threshold = check_number(threshold, "threshold")
        self.negative_cost = check_number(negative_cost, "negative_cost", above=0.0)
        self.independence = check_number(independence, "independence", at_least=0.0)
        self.weight_penalty = check_number(weight_penalty, "weight_penalty", at_least=0.0)

    def heads(self, dim: int) -> tuple[Head, ...]:
        """Three learners on the last features, 3, 5 and 8 sixteenths of the width.

        Args:
            dim: Width of all together; 512 in the paper's tables.
        """
        if dim < len(LEARNERS):
            raise BadData(f"dim {dim}: three learners need an embedding of at least 3 numbers")
        first, second = (max(1, dim * share // sum(_SHARES)) for share in _SHARES[:2])
        widths = (first, second, dim - first - second)
        return tuple(
            Head(name=name, dim=width, weight=width / dim)
            for name, width in zip(LEARNERS, widths, strict=True)
        )

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The boosted losses of the learners, and what keeps them independent."""
        same = batch.labels[:, None] == batch.labels[None, :]
        learners = [outputs.parts[name] for name in LEARNERS]
        losses = self.boosted(learners, same)
        terms = {"discriminative": torch.stack(losses).mean()}
        total = terms["discriminative"]
        if self.independence:
            layers = [self._layer(name) for name in LEARNERS]
            terms["independence"] = self.auxiliary(outputs.parts["features"].detach(), layers)
            total = total + self.independence * terms["independence"]
        return StepLoss(total, terms)

    def _layer(self, name: str) -> Tensor:
        """The weights of a learner. (d, C)"""
        layers = self.model.get_submodule(f"head.{name}")
        assert isinstance(layers, nn.Sequential)
        weight: Tensor = layers[-1].get_parameter("weight")
        return weight

    def boosted(self, learners: list[Tensor], same: Tensor) -> list[Tensor]:
        """The loss of each learner, on pairs weighted by the learners before it.

        Args:
            learners: Unit vectors. (B, d_m) each
            same: Which pairs are of one class. (B, B)
        """
        # A batch of one class has no other pairs to count.
        shares = torch.where(same, 1.0 / same.sum(), 1.0 / (~same).sum().clamp(min=1))
        shares = shares.to(learners[0].dtype).fill_diagonal_(0.0)
        sign = torch.where(same, 1.0, -self.negative_cost).to(learners[0].dtype)
        weights, score = torch.ones_like(shares), torch.zeros_like(shares)
        losses = []
        for number, rows in enumerate(learners, start=1):
            similarity = rows @ rows.T
            margin = self.scale * (similarity - self.threshold) * sign
            losses.append((shares * weights * functional.softplus(-margin)).sum())
            if self.boosting == "simple":
                score = score + self.shrinkage * margin.detach()
                weights = torch.sigmoid(-0.5 - score) * torch.where(same, 1.0, 2.0)
            else:
                step = 2.0 / (number + 1.0)
                score = (1.0 - step) * score + step * self.shrinkage * similarity.detach()
                weights = torch.sigmoid(-self.scale * (score - self.threshold) * sign)
        return losses

    def auxiliary(self, features: Tensor, layers: list[Tensor]) -> Tensor:
        """L_act: what the learners share, and how far their weights are from unit rows.

        Args:
            features: Without a gradient. (B, C)
            layers: Weights of the learners. (d_m, C) each
        """
        outputs = [features @ layer.T for layer in layers]
        shared = [shared_activity(one, two) for one, two in itertools.combinations(outputs, 2)]
        lengths = [(layer.square().sum(dim=1) - 1.0).square().mean() for layer in layers]
        return torch.stack(shared).sum() + self.weight_penalty * torch.stack(lengths).sum()


def shared_activity(first: Tensor, second: Tensor) -> Tensor:
    """Mean over images and pairs of outputs of the product of their squares.

    Args:
        first: Outputs of one learner. (B, d)
        second: Outputs of another. (B, d')
    """
    return (first.square().mean(dim=1) * second.square().mean(dim=1)).mean()


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
