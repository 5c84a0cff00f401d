"""Heads that mix others: by gates of each image, or by relations between the parts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class Gates(nn.Module):
    """A weighted sum of other heads, with weights that each image gives for itself.

        p = softmax(V sg(y_1, ..., y_K) + c)        (B, K)
        q = Σ_k p_k y_k                             (B, d)

    y are the outputs of the heads before the division by their length, all as wide; the gate sees
    them without a gradient.

    Args:
        dim: d.
        count: K.
    """

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.gate = linear(dim * count, count)

    def logits(self, mixed: Sequence[Tensor]) -> Tensor:
        """What the softmax is taken of. (B, K)

        Args:
            mixed: y. (B, d) each
        """
        found: Tensor = self.gate(torch.cat([*mixed], dim=1).detach())
        return found

    def forward(self, features: Tensor, mixed: Sequence[Tensor]) -> Tensor:
        """q.

        Args:
            features: Not used: the gate sees y.
            mixed: y. (B, d) each
        """
        del features
        weights = self.logits(mixed).softmax(dim=1)  # (B, K)
        return (weights[:, :, None] * torch.stack([*mixed], dim=1)).sum(dim=1)


class Relations(nn.Module):
    """Other heads, each with what the rest tell of it, side by side.

    With h_k the k-th of K equal pieces of the features, and v_k the unit vectors of head k:

        q_k  = A_k sg(h_k),  t_k = B_k sg(h_k)                     (B, d)
        S_ij = max(0, w (q_i - t_j) + b)                           (B, K, K)
        v'_j = Σ_i S_ij v_i / Σ_i S_ij, zero where the sum is      (B, d)
        o_j  = I [v_j ; v'_j],  I of all j alike, begins as [1 | 0]
        out  = (o_1, ..., o_K)                                     (B, K d)

    Args:
        features: Width of the features.
        dim: d.
        count: K.
    """

    def __init__(self, features: int, dim: int, count: int) -> None:
        super().__init__()
        widths = [piece_width(features, place, count) for place in range(count)]
        self.sources = nn.ModuleList(linear(width, dim) for width in widths)
        self.targets = nn.ModuleList(linear(width, dim) for width in widths)
        self.score = linear(dim, 1)
        self.integrate = nn.Linear(2 * dim, dim)
        with torch.no_grad():
            self.integrate.weight.copy_(torch.eye(dim, 2 * dim))
            self.integrate.bias.zero_()

    def forward(self, features: Tensor, mixed: Sequence[Tensor]) -> Tensor:
        """out.

        Args:
            features: Pooled. (B, C)
            mixed: Outputs of the heads, of any length. (B, d) each
        """
        count = len(self.sources)
        pieces = [feature_piece(features.detach(), place, count) for place in range(count)]
        sources = torch.stack([f(h) for f, h in zip(self.sources, pieces, strict=True)], dim=1)
        targets = torch.stack([f(h) for f, h in zip(self.targets, pieces, strict=True)], dim=1)
        scores = self.score(sources[:, :, None] - targets[:, None, :])[..., 0]  # (B, K, K)
        units = functional.normalize(torch.stack([*mixed], dim=1), dim=2)  # (B, K, d)
        related = relate(functional.relu(scores), units)
        found: Tensor = self.integrate(torch.cat([units, related], dim=2))
        return found.flatten(1)


def relate(scores: Tensor, units: Tensor) -> Tensor:
    """v': of each part, the mean of all parts by their scores for it. (B, K, d)

    Args:
        scores: S, at least zero, from part i to part j. (B, K, K)
        units: v. (B, K, d)
    """
    shares = scores / scores.sum(dim=1, keepdim=True).clamp(min=1e-12)
    return shares.transpose(1, 2) @ units


#: What builds the layers of a mixing head from the width of the features, that of the heads that
#: it mixes, and their number.
MIXINGS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "gates": lambda features, dim, count: Gates(dim, count),
    "relations": Relations,
}


def mixed_dim(mixing: str, dim: int, count: int) -> int:
    """The width of a mixing head."""
    return dim * count if mixing == "relations" else dim


def feature_piece(features: Tensor, place: int, count: int) -> Tensor:
    """One of so many pieces of the features, as equal as they can be. (B, about C / count)

    Args:
        features: (B, C)
        place: Which of them, from 0.
        count: How many there are.
    """
    width = features.shape[1]
    return features[:, width * place // count : width * (place + 1) // count]


def piece_width(features: int, place: int, count: int) -> int:
    """How wide that piece is.

    Args:
        features: C.
        place: Which of them, from 0.
    """
    return features * (place + 1) // count - features * place // count


def linear(incoming: int, outgoing: int) -> nn.Linear:
    """A linear layer as all heads begin: kaiming-normal (fan-out), without bias."""
    layer = nn.Linear(incoming, outgoing)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    nn.init.zeros_(layer.bias)
    return layer
