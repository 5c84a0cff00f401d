"""Heads that are more than linear layers on pooled features, each as plain data and as layers.

`ChannelAttention`: behind a module of the backbone, its map X is weighed in several ways, and the
rest of the backbone sees all of them:

    A_j = sigmoid(V_j ReLU(U_j X)),  U, V convolutions of one place
    part_j = unit(W pool(rest(A_j ⊙ X))),  one W for all j;  embedding = the parts side by side

It may have several streams, each a network with attentions and a W of its own: the first sees the
image, the next the object in it by `cbml.models.object_attention`, and so on; all start alike.

`ColorFusion`: a histogram h of the colors that the network sees joins its features g:

    fused = unit(W (relu(F g + a) + relu(U h + c)) + b),  network = unit(W relu(F g + a) + b)
    embedding = fused
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.models.heads import module_of
from cbml.models.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class ChannelAttention:
    """Several attentions over the channels of one map.

    Args:
        tap: Name of the backbone's module whose output is weighed; "low" or "middle" for the
            backbone's own module of that level.
        count: How many attentions each stream has. The parts of the embedding are "attention_1",
            ..., stream by stream.
        hidden: Channels between the two convolutions of an attention.
        streams: How many networks there are, each of which sees less of the image.
    """

    tap: str = "middle"
    count: int = 3
    hidden: int = 64
    streams: int = 1

    def __post_init__(self) -> None:
        sizes = {"count": self.count, "hidden": self.hidden, "streams": self.streams}
        _check_sizes("ChannelAttention", **sizes)

    def widths(self, dim: int) -> list[int]:
        """Widths of all parts of an embedding, the first ones wider where it has to be.

        Args:
            dim: Width of the embedding.
        """
        parts = self.count * self.streams
        return [dim // parts + (part < dim % parts) for part in range(parts)]


@dataclass(frozen=True, kw_only=True)
class ColorFusion:
    """A histogram of hue, saturation and value beside the features.

    Args:
        width: Width of the layer in which both meet.
        bins: Bins of hue, saturation and value.
    """

    width: int = 512
    bins: tuple[int, int, int] = (16, 4, 4)

    def __post_init__(self) -> None:
        if len(self.bins) != 3:
            raise BadData("ColorFusion: bins are those of hue, saturation and value")
        _check_sizes("ColorFusion", width=self.width, **dict(zip("hsv", self.bins, strict=True)))


HeadKind = ChannelAttention | ColorFusion
_KINDS: dict[str, type[ChannelAttention] | type[ColorFusion]] = {
    "channel_attention": ChannelAttention,
    "color_fusion": ColorFusion,
}


def _check_sizes(kind: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if not (type(size) is int and 1 <= size <= 65_536):
            raise BadData(f"{kind}: {name} is {size!r}, not a whole number from 1 to 65536")


def head_as_dict(head: HeadKind | None) -> dict[str, Any] | None:
    """The head as plain values, ready for JSON."""
    if head is None:
        return None
    kind = next(name for name, known in _KINDS.items() if isinstance(head, known))
    return {"kind": kind, **dataclasses.asdict(head)}


def head_of(plain: Any) -> HeadKind | None:
    """The head that `head_as_dict` described; anything else is refused."""
    if plain is None:
        return None
    options = dict(plain) if isinstance(plain, Mapping) else {}
    kind = _KINDS.get(str(options.pop("kind", None)))
    if kind is None or set(options) != {field.name for field in dataclasses.fields(kind)}:
        raise BadData(f"head {plain!r}: not one of {', '.join(_KINDS)} with all of its fields")
    if "bins" in options:
        options["bins"] = tuple(options["bins"])
    return kind(**options)


def resolve_head(head: HeadKind | None, backbone: str, dim: int) -> HeadKind | None:
    """The head with a module of the backbone in place of the name of a level.

    Args:
        head: A head, which may read a level of the backbone.
        backbone: Name of the backbone.
        dim: Width of the embedding.
    """
    if not isinstance(head, ChannelAttention):
        return head
    attentions = head.count * head.streams
    if dim < 2 * attentions:  # a unit vector of one number is a sign, and learns nothing
        raise BadData(f"dim {dim}: {attentions} attentions need two numbers each")
    return dataclasses.replace(head, tap=module_of(head.tap, backbone))


class AttentionHead(nn.Module):
    """The layers of one stream of `ChannelAttention`.

    Args:
        head: What it describes.
        channels: Of the map that is weighed.
        features: Width of the pooled features.
        dim: Width of the embedding.
        stream: Which of the streams, from 0.
    """

    def __init__(
        self, head: ChannelAttention, channels: int, features: int, dim: int, stream: int = 0
    ) -> None:
        super().__init__()
        self.tap = head.tap
        self.attentions = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, head.hidden, 1),
                nn.ReLU(),
                nn.Conv2d(head.hidden, channels, 1),
                nn.Sigmoid(),
            )
            for _ in range(head.count)
        )
        # Where the width cannot be divided evenly, the last parts leave out W's last row.
        self.first = stream * head.count
        self.widths = head.widths(dim)[self.first :][: head.count]
        self.linear = nn.Linear(features, self.widths[0], bias=False)
        nn.init.kaiming_normal_(self.linear.weight, mode="fan_out")

    def spread(self, found: Tensor) -> Tensor:
        """The map as each attention weighs it, one after the other. (J B, C, H, W)"""
        return torch.cat([attention(found) * found for attention in self.attentions])

    def raw(
        self, features: Tensor, images: Tensor, preprocessing: Preprocessing
    ) -> dict[str, Tensor]:
        """What each attention gives before the division by its length."""
        del images, preprocessing
        rows = self.linear(features).unflatten(0, (len(self.attentions), -1)).unbind(0)
        return {
            f"attention_{number}": part[:, :width]
            for number, (part, width) in enumerate(
                zip(rows, self.widths, strict=True), start=self.first + 1
            )
        }

    def embedding(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The parts side by side, of length one."""
        return functional.normalize(torch.cat([*parts.values()], dim=1), dim=1)


class Stream(nn.Module):
    """A further network of a model, with a head of its own."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        assert isinstance(head, AttentionHead), "no other head has streams"
        self.backbone, self.head = backbone, head


class FusionHead(nn.Module):
    """The layers of `ColorFusion`."""

    def __init__(self, head: ColorFusion, features: int, dim: int) -> None:
        super().__init__()
        self.bins = head.bins
        hue, saturation, value = head.bins
        self.color = nn.Linear(hue * saturation * value, head.width)
        self.network = nn.Linear(features, head.width)
        self.linear = nn.Linear(head.width, dim)
        for layer in (self.color, self.network, self.linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            nn.init.zeros_(layer.bias)

    def raw(
        self, features: Tensor, images: Tensor, preprocessing: Preprocessing
    ) -> dict[str, Tensor]:
        """The fused row, and that of the network alone, before the division by their length."""
        colors = color_histogram(images, preprocessing, self.bins)
        alone = self.network(features).relu()
        fused = alone + self.color(colors).relu()
        return {"fused": self.linear(fused), "network": self.linear(alone)}

    def embedding(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The fused row."""
        return parts["fused"]


@torch.no_grad()
def color_histogram(
    images: Tensor, preprocessing: Preprocessing, bins: tuple[int, int, int] = (16, 4, 4)
) -> Tensor:
    """Fourth roots of the shares of colors in the images, of length one. (B, bins)

    The pixels are those that the network sees. Gray ones have hue 0.

    Args:
        images: As `preprocessing` made them. (B, 3, H, W)
        preprocessing: The preprocessing to undo first.
    """
    mean = torch.tensor(preprocessing.mean, device=images.device).view(3, 1, 1)
    std = torch.tensor(preprocessing.std, device=images.device).view(3, 1, 1)
    # Whole numbers again: no color falls into another bin by rounding.
    colors = ((images.float() * std + mean) / preprocessing.scale).round().clamp(0.0, 255.0)
    colors = colors.flatten(2).flip(1) if preprocessing.order == "BGR" else colors.flatten(2)
    bin_index = bin_of(colors, bins)  # (B, H W)
    counts = torch.zeros(images.shape[0], bins[0] * bins[1] * bins[2], device=images.device)
    counts = counts.scatter_add(1, bin_index, torch.ones_like(bin_index, dtype=counts.dtype))
    return functional.normalize((counts / bin_index.shape[1]).sqrt().sqrt(), dim=1)


def bin_of(colors: Tensor, bins: tuple[int, int, int]) -> Tensor:
    """The number of the bin of each pixel: by hue, then saturation, then value. (B, N)

    Args:
        colors: Red, green and blue, 0 to 255. (B, 3, N)
    """
    red, green, blue = colors.unbind(1)
    most, least = colors.amax(dim=1), colors.amin(dim=1)
    spread = (most - least).clamp(min=1.0)
    hue = torch.where(
        most == red,
        (green - blue) / spread % 6.0,
        torch.where(most == green, (blue - red) / spread + 2.0, (red - green) / spread + 4.0),
    )
    hue = torch.where(most == least, 0.0, hue) / 6.0
    shares = (hue, (most - least) / most.clamp(min=1.0), most / 255.0)
    bin_index = torch.zeros_like(hue)
    for share, count in zip(shares, bins, strict=True):
        bin_index = bin_index * count + (share * count).floor().clamp(max=count - 1)
    return bin_index.long()
