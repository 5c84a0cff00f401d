"""DCML: sub-embeddings that are trained through composites, which gates mix from them."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData, check_choice
from cbml.losses import check_count, check_number
from cbml.methods.margin import MarginTriplets
from cbml.models import Gates, Head
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, ParameterGroup, StepLoss

Losses = Literal["per_composite", "joint"]
Searched = Literal["composites", "sub_embeddings"]


class DCML(Method):
    """Margin losses on gated sums of sub-embeddings (Zheng et al. 2021).

    With y_k the K linear sub-embeddings and p_l the gates (`cbml.models.heads`):

        q_l    = Σ_k p_lk y_k                                   the composites
        J_self = Σ_l mean -log max_k p_lk                       gates become sure of one
        loss   = λ J_self + Σ_l Margin_l(q_l / |q_l|)           "per_composite"
        loss   = λ J_self + Margin((q_1, ..., q_L), of length one)     "joint"

    J_self reaches the gates alone. Margin is `MarginTriplets` with the rule "classes". Gates that
    all choose one sub-embedding leave the others untrained: "gate_use" in the records is the
    smallest mean weight of a sub-embedding, over all gates.

    Args:
        num_classes: Number of training classes.
        sub_embeddings: K. 4, from the authors' program, as all numbers here.
        composites: L. 4.
        losses: "per_composite", as the paper says, or "joint", as parts of the program have it.
        embedding: "composites", which the program evaluates, or "sub_embeddings".
        self_weight: λ. 1.
        margin: m. 0.2.
        beta: Start of β, one for each class. 1.2.
        near: Smallest distance of the sampling weights. 0.5.
        beta_factor: Factor on the learning rate of β. 50.
        seed: Random seed of the draws.
    """

    smallest_batch = (2, 2)

    def __init__(
        self,
        *,
        num_classes: int,
        sub_embeddings: int = 4,
        composites: int = 4,
        losses: Losses = "per_composite",
        embedding: Searched = "composites",
        self_weight: float = 1.0,
        margin: float = 0.2,
        beta: float = 1.2,
        near: float = 0.5,
        beta_factor: float = 50.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.embedding = check_choice(embedding, "embedding", Searched)
        self.joint = check_choice(losses, "losses", Losses) == "joint"
        self.self_weight = check_number(self_weight, "self_weight", at_least=0.0)
        self.beta_factor = check_number(beta_factor, "beta_factor", above=0.0)
        self.subs = _names("sub", check_count(sub_embeddings, "sub_embeddings"))
        self.mixed = _names("composite", check_count(composites, "composites"))
        self.parts = tuple(
            f"raw:{name}" for name in (*self.subs, *(self.mixed if self.joint else ()))
        )
        self.margins = nn.ModuleList(
            MarginTriplets(
                num_classes=num_classes, margin=margin, beta=beta, near=near, seed=seed + number
            )
            for number in range(1 if self.joint else composites)
        )

    def heads(self, dim: int) -> tuple[Head, ...]:
        """The sub-embeddings and the composites, one of both kinds within the embedding.

        Args:
            dim: Width of the embedding; 512 in the paper's tables.
        """
        composed = self.embedding == "composites"
        count = len(self.mixed if composed else self.subs)
        if dim % count:
            raise BadData(
                f"dim {dim}: {count} {self.embedding} of one width need a multiple of {count}"
            )
        width = dim // count
        subs = [Head(name=name, dim=width, weight=float(not composed)) for name in self.subs]
        mixed = [
            Head(name=name, dim=width, weight=float(composed), mixes=self.subs, mixing="gates")
            for name in self.mixed
        ]
        return (*subs, *mixed)

    def parameter_groups(self) -> list[ParameterGroup]:
        """The β, without weight decay."""
        return [
            ParameterGroup("loss", [*self.margins.parameters()], self.beta_factor, weight_decay=0.0)
        ]

    def log_weights(self, raw: list[Tensor]) -> Tensor:
        """log p of all gates; only they get its gradient. (B, L, K)

        Args:
            raw: Outputs y of the sub-embeddings. (B, d) each
        """
        gates = [self.model.get_submodule(f"head.{name}") for name in self.mixed]
        logits = [gate.logits(raw) for gate in gates if isinstance(gate, Gates)]
        return torch.stack(logits, dim=1).log_softmax(dim=2)

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """What the composites lose, and how unsure the gates are."""
        log_weights = self.log_weights([outputs.parts[f"raw:{name}"] for name in self.subs])
        if self.joint:
            whole = torch.cat([outputs.parts[f"raw:{name}"] for name in self.mixed], dim=1)
            rows = [functional.normalize(whole, dim=1)]
        else:
            rows = [outputs.parts[name] for name in self.mixed]
        losses = [loss(row, batch) for loss, row in zip(self.margins, rows, strict=True)]
        terms = {
            "margin": torch.stack(losses).sum(),
            "gates": self_reinforced(log_weights),
            "gate_use": log_weights.detach().exp().mean(dim=(0, 1)).min(),
        }
        return StepLoss(terms["margin"] + self.self_weight * terms["gates"], terms)


def self_reinforced(log_weights: Tensor) -> Tensor:
    """J_self: the cross entropy of each gate with its own largest entry.

    Args:
        log_weights: log p. (B, L, K)
    """
    return -log_weights.amax(dim=2).mean(dim=0).sum()


def _names(kind: str, count: int) -> tuple[str, ...]:
    return tuple(f"{kind}_{number + 1}" for number in range(count))
