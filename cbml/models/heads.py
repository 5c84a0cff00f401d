"""Several sub-embeddings of one network, each from a depth of its own, and what becomes of them.

With x_k the pooled features that head k reads, f_k its layers and w_k its weight:

    part_k    = f_k(x_k) / |f_k(x_k)|                         (B, d_k)
    embedding = (w_1 part_1, w_2 part_2, ...) / √Σ w_k²       (B, Σ d_k), heads of weight 0 left out

A head may also mix others: then f_k has their outputs beside x_k; see `Gates` and `Relations`.
"""

import dataclasses
import itertools
import keyword
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.models.backbones import find_backbone


class Gates(nn.Module):
    """A weighted sum of other heads, with weights that each image gives for itself.

        p = softmax(V sg(y_1, ..., y_K) + c)        (B, K)
        q = Σ_k p_k y_k                             (B, d)

    y are the outputs of the heads before the division by their length, all as wide; the gate sees
    them without a gradient.

    Args:
        dim: Width of each head, d.
        count: Number of heads, K.
    """

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.gate = linear(dim * count, count)

    def logits(self, mixed: Sequence[Tensor]) -> Tensor:
        """The logits of the weights p. (B, K)

        Args:
            mixed: Outputs y of the heads. (B, d) each
        """
        found: Tensor = self.gate(torch.cat([*mixed], dim=1).detach())
        return found

    def forward(self, features: Tensor, mixed: Sequence[Tensor]) -> Tensor:
        """The weighted sum q. (B, d)

        Args:
            features: Not used: the gate sees y.
            mixed: Outputs y of the heads. (B, d) each
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
    """

    def __init__(self, features: int, dim: int, count: int) -> None:
        super().__init__()
        widths = [piece_width(features, number, count) for number in range(count)]
        self.sources = nn.ModuleList(linear(width, dim) for width in widths)
        self.targets = nn.ModuleList(linear(width, dim) for width in widths)
        self.score = linear(dim, 1)
        self.integrate = nn.Linear(2 * dim, dim)
        with torch.no_grad():
            self.integrate.weight.copy_(torch.eye(dim, 2 * dim))
            self.integrate.bias.zero_()

    def forward(self, features: Tensor, mixed: Sequence[Tensor]) -> Tensor:
        """The related heads side by side. (B, K d)

        Args:
            features: Pooled. (B, C)
            mixed: Outputs of the heads, of any length. (B, d) each
        """
        count = len(self.sources)
        pieces = [feature_piece(features.detach(), number, count) for number in range(count)]
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


def feature_piece(features: Tensor, number: int, count: int) -> Tensor:
    """One of so many pieces of the features, as equal as they can be. (B, about C / count)

    Args:
        features: (B, C)
        number: Which of them, from 0.
        count: How many there are.
    """
    width = features.shape[1]
    return features[:, width * number // count : width * (number + 1) // count]


def piece_width(features: int, number: int, count: int) -> int:
    """How wide that piece is."""
    return features * (number + 1) // count - features * number // count


def linear(incoming: int, outgoing: int) -> nn.Linear:
    """A linear layer as all heads begin: kaiming-normal (fan-out), without bias."""
    layer = nn.Linear(incoming, outgoing)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    nn.init.zeros_(layer.bias)
    return layer


# From a map of features to one vector of features.

POOLINGS = ("average", "max", "average_max", "generalized_mean", "backbone")


class GeneralizedMean(nn.Module):
    """Generalized-mean (GeM) pooling: between the average (p = 1) and the maximum (p -> ∞).

        pooled_c = (mean_{h,w} max(x_chw, floor)^p)^{1/p}

    Args:
        power: p, the start value; it is learned. 3 is the value of the GeM paper (Radenović 2018).
        floor: Smallest feature value, so that the root has a gradient.
    """

    def __init__(self, *, power: float = 3.0, floor: float = 1e-6) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor([power]))
        self.floor = floor

    def forward(self, features: Tensor) -> Tensor:
        """The pooled features, (B, C, H, W) -> (B, C).

        Args:
            features: The map, float32: powers of half-precision numbers overflow.
        """
        raised = features.clamp(min=self.floor).pow(self.power)
        return raised.mean((-2, -1)).pow(1 / self.power)


def pool(features: Tensor, kind: str) -> Tensor:
    """Average, maximum or their sum over the places of a map, (B, C, H, W) -> (B, C)."""
    if kind == "average":
        return features.mean((-2, -1))
    if kind == "max":
        return features.amax((-2, -1))
    if kind == "average_max":
        return features.mean((-2, -1)) + features.amax((-2, -1))
    raise BadData(f"pooling {kind!r}: use one of {', '.join(POOLINGS)}")


def cut_cells(found: Tensor, side: int) -> Tensor:
    """A map averaged over a grid of cells. (B, C, side, side)

    Where the sides of the map are no multiples of the grid's, it is first drawn, corners on
    corners, at four times the grid.

    Args:
        found: The map. (B, C, H, W)
        side: Cells in a row and in a column.
    """
    if found.shape[2] % side or found.shape[3] % side:
        size = (4 * side, 4 * side)
        found = functional.interpolate(found, size, mode="bilinear", align_corners=True)
    return functional.avg_pool2d(found, (found.shape[2] // side, found.shape[3] // side))


#: The depth of the backbone's last features.
LAST = ""
#: Depths that every backbone of the table has, before the last.
LEVELS = ("low", "middle")
_LISTS = ("hidden", "piece", "mixes")


@dataclass(frozen=True, kw_only=True)
class Head:
    """One sub-embedding as plain data: what a saved model needs to build it again.

    Args:
        name: Name of the part in the model's outputs.
        dim: Width of the sub-embedding.
        tap: Name of the backbone's module whose output it is computed from, such as "layer3"; ""
            reads the last features, and "low" or "middle" the backbone's own module for that level.
            A module whose output is changed in place is no tap.
        hidden: Widths of layers with a ReLU before the last, linear one.
        weight: Weight within the embedding; 0 leaves the part out of it.
        piece: Number and count: it reads that piece of the features, from 0, of so many.
        mixes: Names of heads before this one that it mixes, all of one width.
        mixing: How, a name in MIXINGS; "" where it mixes none.
    """

    name: str
    dim: int
    tap: str = LAST
    hidden: tuple[int, ...] = ()
    weight: float = 1.0
    piece: tuple[int, int] = (0, 1)
    mixes: tuple[str, ...] = ()
    mixing: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or keyword.iskeyword(self.name):  # as torch.export demands
            raise BadData(
                f"head {self.name!r}: a name has letters, digits and underscores alone, and is no "
                "keyword of Python"
            )
        if min(self.dim, *self.hidden, 65_536) < 1 or max(self.dim, *self.hidden, 1) > 65_536:
            raise BadData(f"head {self.name!r}: layers have between 1 and 65536 numbers")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise BadData(f"head {self.name!r}: weight {self.weight} must be at least 0")
        number, count = self.piece
        if not 0 <= number < count <= 65_536:
            raise BadData(f"head {self.name!r}: piece {self.piece} is none of its count")
        if bool(self.mixes) != (self.mixing in MIXINGS):
            raise BadData(f"head {self.name!r}: mixing is one of {', '.join(MIXINGS)}, of mixes")

    @classmethod
    def of(cls, plain: Any) -> "Head":
        """The head that `as_dict` described.

        Args:
            plain: The fields by name.
        """
        try:
            lists = {name: tuple(plain[name]) for name in _LISTS if name in plain}
            return cls(**{**plain, **lists})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise BadData(f"no head of a model ({error}): {plain!r}") from None

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return {**asdict(self), **{name: list(getattr(self, name)) for name in _LISTS}}


class Heads(nn.ModuleDict):
    """The layers of several heads; gives their parts and the embedding."""

    def __init__(self, heads: Sequence[Head], widths: Mapping[str, int]) -> None:
        super().__init__()
        self.described = tuple(heads)
        self.dim = sum(head.dim for head in heads if head.weight)
        for head in heads:
            if head.name in self:
                raise BadData(f"head {head.name!r}: each head needs its own name")
            self[head.name] = self._layers(head, widths[head.tap])
        if not self.dim:
            raise BadData("heads: one needs a weight above zero")

    def _layers(self, head: Head, width: int) -> nn.Module:
        if not head.mixing:
            return _layers(head, width)
        known = {each.name: each for each in self.described if each.name in self}
        dims = {known[name].dim if name in known else None for name in head.mixes}
        dim, count = next(iter(dims)), len(head.mixes)
        if len(dims) > 1 or dim is None or head.dim != mixed_dim(head.mixing, dim, count):
            raise BadData(f"head {head.name!r}: mixes heads before it, all of one fitting width")
        return MIXINGS[head.mixing](width, dim, count)

    def raw(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each head gives before the division by its length."""
        found: dict[str, Tensor] = {}
        for head in self.described:
            read = features[head.tap]
            if head.mixing:
                found[head.name] = self[head.name](read, [found[name] for name in head.mixes])
            else:
                found[head.name] = self[head.name](feature_piece(read, *head.piece))
        return found

    def embedding(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The weighted parts side by side, of length one."""
        kept = [head.weight * parts[head.name] for head in self.described if head.weight]
        return functional.normalize(torch.cat(kept, dim=1), dim=1)


def resolve_levels(heads: Sequence[Head], backbone: str) -> tuple[Head, ...]:
    """The heads with the module of a backbone in place of the name of a level.

    Args:
        heads: Some may read a level.
        backbone: Name of the backbone.
    """
    return tuple(dataclasses.replace(head, tap=module_of(head.tap, backbone)) for head in heads)


def module_of(tap: str, backbone: str) -> str:
    """The module of a backbone that a tap means, by its own name or by that of a level."""
    if tap not in LEVELS:
        return tap
    levels = find_backbone(backbone).levels
    if levels is None:
        raise BadData(f"{backbone}: its low and middle levels are not known; use another backbone")
    return levels[LEVELS.index(tap)]


def _layers(head: Head, width: int) -> nn.Module:
    widths = (piece_width(width, *head.piece), *head.hidden, head.dim)
    layers: list[nn.Module] = []
    for incoming, outgoing in itertools.pairwise(widths):
        layers += [linear(incoming, outgoing), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
