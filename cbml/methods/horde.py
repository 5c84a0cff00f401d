"""HORDE: the same loss on higher moments of the feature map, in training alone."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.losses import check_count, check_number
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, StepLoss


class Horde(Method):
    """A pair loss on the embedding and on higher moments of the features (Jacob et al. 2019).

    With F(l) the features at place l of the last map and ⊙ the product of each pair of numbers:

        φ_2(l) = (P_1 F(l)) ⊙ (P_2 F(l))
        φ_k(l) = φ_{k-1}(l) ⊙ (P_k F(l))                k = 3 ... K
        e_k    = E_k mean_l φ_k(l), of length one;      e_1 the embedding
        loss   = Σ_k ℓ(e_k)
        ℓ      = mean_P ½ (s - 1)² + mean_{N, s > t} ½ (s - t)

    Only the embedding is used afterwards. A map that the model flattens itself has no places.

    Args:
        orders: K. 5, from the authors' program.
        width: Rows of each P. 8192, from the same.
        threshold: t. 0.5, from the same.
        trained: Whether P and E are learned, as in the paper's tables; else P is -1 or 1 at random
            and stays, and e_k is the mean itself.
        embedding_size: Rows of each E: the width of the embedding.
        seed: Random seed of P and E.
    """

    smallest_batch = (2, 2)
    parts = ("map",)

    def __init__(
        self,
        *,
        orders: int = 5,
        width: int = 8192,
        threshold: float = 0.5,
        trained: bool = True,
        embedding_size: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.orders = check_count(orders, "orders")
        self.width = check_count(width, "width")
        self.trained = trained
        self.threshold = check_number(threshold, "threshold", at_least=-1.0, at_most=1.0)
        self.embedding_size, self.seed = embedding_size, seed
        self.projections = nn.ParameterList()  # P_k, (width, C)
        self.embeddings = nn.ParameterList()  # E_k from the second order on, (D, width)

    def attach(self, model: Embedder) -> None:
        """Build P and E for the channels of the model's map."""
        super().attach(model)
        if model.pooling == "backbone":
            raise BadData("Horde: pooling 'backbone' hides the map; use pooling='average'")
        if self.orders == 1 or self.projections:
            return
        parameter = next(model.head.parameters())
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.orders):
            shape = (self.width, parameter.shape[1])
            drawn = _glorot(shape, generator) if self.trained else _signs(shape, generator)
            self.projections.append(nn.Parameter(drawn, requires_grad=self.trained))
        for _ in range(self.orders - 1 if self.trained else 0):
            drawn = _glorot((self.embedding_size, self.width), generator)
            self.embeddings.append(nn.Parameter(drawn))
        self.to(parameter.device)

    def moments(self, features: Tensor) -> list[Tensor]:
        """Means of φ_2 ... φ_K over the places. (B, width) each

        Args:
            features: The map. (B, C, H, W)
        """
        if self.orders == 1:
            return []
        positions = features.flatten(2).transpose(1, 2)  # (B, HW, C)
        found, product = [], positions @ self.projections[0].T
        for projection in self.projections[1:]:
            product = product * (positions @ projection.T)
            found.append(product.mean(dim=1))
        return found

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The sum of the losses of all orders."""
        terms = {"order_1": self.pair_loss(outputs.embeddings, batch.labels)}
        with torch.autocast(outputs.embeddings.device.type, enabled=False):
            for number, moment in enumerate(self.moments(outputs.parts["map"].float())):
                rows = moment @ self.embeddings[number].T if self.trained else moment
                unit = functional.normalize(rows, dim=1)
                terms[f"order_{number + 2}"] = self.pair_loss(unit, batch.labels)
        return StepLoss(torch.stack([*terms.values()]).sum(), terms)

    def pair_loss(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The pair loss ℓ.

        Args:
            rows: Unit vectors. (B, D)
            labels: Class of each row. (B,)
        """
        similarity = rows @ rows.T
        same = labels[:, None] == labels[None, :]
        positive = same & ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        excess = similarity - self.threshold
        active = ~same & (excess > 0.0)
        pull = (similarity - 1.0).square().masked_fill(~positive, 0.0).sum()
        push = excess.masked_fill(~active, 0.0).sum()
        return (pull / positive.sum().clamp(min=1) + push / active.sum().clamp(min=1)) / 2.0


def _glorot(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    bound = (6.0 / sum(shape)) ** 0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def _signs(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, shape, generator=generator).float() * 2.0 - 1.0
