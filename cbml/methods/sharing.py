"""Sharing-DML: one head for what tells classes apart, one for what they have in common."""

import torch
from torch import nn

from cbml.errors import BadData
from cbml.losses import check_count, check_number
from cbml.methods.margin import MarginTriplets, Rule
from cbml.methods.mic import decorrelation
from cbml.models import Embedder, Head
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, ParameterGroup, StepLoss

HEADS = ("discriminative", "shared")


class Sharing(Method):
    """Margin losses on class-specific and on shared traits, kept apart (Milbich et al. 2020).

    With z^d and z^s the unit vectors of two linear heads:

        loss = Margin_d(z^d) + α Margin_s(z^s) + ρ A
        A    = -mean (z^d r)²,   r = R(z^s) / |R(z^s)|,   the mean over images and numbers

    Margin is `MarginTriplets`: Margin_d has triplets by class, those of Margin_s cross classes, by
    a rule. R has one hidden layer; the heads get the reversed gradient of A, so that R makes the
    agreement large and the heads make it small. The authors' own program is not public: the parts
    are those of DiVA (Milbich et al., ECCV 2020), whose numbers for CUB are the defaults.

    Args:
        num_classes: Number of training classes.
        shared_weight: α. 0.3; DiVA has 0.15 for Cars and 0.2 for SOP.
        decorrelation: ρ. 1500; DiVA has 100 for Cars and 150 for SOP.
        rule: How shared triplets are drawn: "standard", "full" or "random".
        weights: Weights of the two heads in the embedding. 1 and 1: DiVA chose on test images.
        hidden: Width of R's layer. 512.
        margin: m. 0.2.
        beta: Start of β, one for each class and head. 1.2.
        near: Smallest distance of the sampling weights. 0.5.
        beta_factor: Factor on the learning rate of β. 50.
        seed: Random seed of R and of the draws.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        shared_weight: float = 0.3,
        decorrelation: float = 1500.0,
        rule: Rule = "standard",
        weights: tuple[float, float] = (1.0, 1.0),
        hidden: int = 512,
        margin: float = 0.2,
        beta: float = 1.2,
        near: float = 0.5,
        beta_factor: float = 50.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shared_weight = check_number(shared_weight, "shared_weight", at_least=0.0)
        self.decorrelation = check_number(decorrelation, "decorrelation", at_least=0.0)
        self.weights = [check_number(weight, "weights", at_least=0.0) for weight in weights]
        if len(self.weights) != len(HEADS):
            raise ValueError("weights: give one number for each of two heads")
        if rule == "classes":
            raise ValueError("rule 'classes': shared triplets cross classes; use 'standard'")
        # A triplet of three classes, unless labels are shuffled.
        self.smallest_batch = (2, 2) if rule == "random" else (3, 2)
        self.beta_factor = check_number(beta_factor, "beta_factor", above=0.0)
        self.hidden, self.seed = check_count(hidden, "hidden"), seed
        rules: tuple[Rule, Rule] = ("classes", rule)
        self.margins = nn.ModuleDict(
            {
                name: MarginTriplets(
                    num_classes=num_classes,
                    rule=rules[number],
                    margin=margin,
                    beta=beta,
                    near=near,
                    seed=seed + number,
                )
                for number, name in enumerate(HEADS)
            }
        )
        self.regressor = nn.Sequential()

    def heads(self, dim: int) -> tuple[Head, ...]:
        """The two heads, each half of the width.

        Args:
            dim: Width of both together; 256 in the paper's tables.
        """
        if dim < len(HEADS):
            raise BadData(f"dim {dim}: two heads need an embedding of at least 2 numbers")
        widths = (dim - dim // 2, dim // 2)
        return tuple(
            Head(name=name, dim=width, weight=weight)
            for name, width, weight in zip(HEADS, widths, self.weights, strict=True)
        )

    def attach(self, model: Embedder) -> None:
        """Build R."""
        super().attach(model)
        if len(self.regressor):
            return
        target, source = (len(model.get_parameter(f"head.{name}.0.bias")) for name in HEADS)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            layers = (nn.Linear(source, self.hidden), nn.ReLU(), nn.Linear(self.hidden, target))
        self.regressor.extend(layers)
        self.to(next(model.parameters()).device)

    def parameter_groups(self) -> list[ParameterGroup]:
        """The β, without weight decay, and R."""
        betas = [*self.margins.parameters()]
        return [
            ParameterGroup("loss", betas, self.beta_factor, weight_decay=0.0),
            ParameterGroup("regressor", [*self.regressor.parameters()]),
        ]

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """Both margin losses, and what the heads agree in."""
        terms = {name: self.margins[name](outputs.parts[name], batch) for name in HEADS}
        target, source = (outputs.parts[name] for name in HEADS)
        terms["agreement"] = decorrelation(source, target, self.regressor)
        total = terms["discriminative"] + self.shared_weight * terms["shared"]
        return StepLoss(total + self.decorrelation * terms["agreement"], terms)
