"""What a network expects of its pictures, as plain data, and the one function that obeys it."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
from torchvision.transforms.v2 import functional as pictures_of

from cbml.errors import BadData

__all__ = ["Preprocessing"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How uint8 RGB pictures become the numbers a network was trained on.

        value = (pixel / 255 · scale - mean) / std        per channel, after resize and crop

    Args:
        mean: per channel, in the order of `channel_order`, on the scale of `scale`.
        std: likewise.
        channel_order: "RGB", or "BGR" for networks that came from Caffe.
        scale: the value of a white pixel before the mean is taken off, 1 or 255.
        resize: the short side is brought to this many pixels first; the paper's test uses 256.
        crop: side of the square cut from the centre; the paper uses 227.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    channel_order: Literal["RGB", "BGR"] = "RGB"
    scale: float = 1.0
    resize: int = 256
    crop: int = 227

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3 or not all(-1e4 < value < 1e4 for value in values):
                raise BadData(f"preprocessing: {name} is {values}; three finite numbers are needed")
            object.__setattr__(self, name, values)
        if min(self.std) <= 0 or self.scale not in (1.0, 255.0):
            raise BadData("preprocessing: std must be positive and scale 1 or 255")
        if self.channel_order not in ("RGB", "BGR"):
            raise BadData(f"preprocessing: channel_order is {self.channel_order!r}, not RGB or BGR")
        if not (isinstance(self.crop, int) and 1 <= self.crop <= self.resize <= 10_000):
            raise BadData(
                f"preprocessing: crop {self.crop} must lie between 1 and resize {self.resize}"
            )

    def frame(self, picture: torch.Tensor) -> torch.Tensor:
        """The centre of a uint8 picture, resized and cropped: (3, H, W) -> (3, crop, crop).

        Args:
            picture: uint8 RGB, channels first.
        """
        height, width = picture.shape[-2:]
        if min(height, width) != self.resize:
            # Sides are computed here, with a floor of one pixel, so that a 65500 × 1 strip passes.
            factor = self.resize / min(height, width)
            size = [max(self.resize, round(side * factor)) for side in (height, width)]
            window = _centre(height, width)
            if window is not None:  # an extreme strip would grow to gigabytes only to be cut away
                picture, size = pictures_of.center_crop(picture, window), [self.resize] * 2
            picture = pictures_of.resize(picture, size, antialias=True)
        framed: torch.Tensor = pictures_of.center_crop(picture, [self.crop, self.crop])
        return framed

    def normalise(self, pictures: torch.Tensor) -> torch.Tensor:
        """uint8 RGB pictures as the network's float32 input; the shape stays: (..., 3, H, W).

        Args:
            pictures: uint8 RGB, channels first.
        """
        values = pictures.float()
        if self.channel_order == "BGR":
            values = values.flip(-3)
        column = (3, 1, 1)
        mean = torch.tensor(self.mean, device=values.device).view(column)
        std = torch.tensor(self.std, device=values.device).view(column)
        return (values * (self.scale / 255.0) - mean) / std

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def of(cls, facts: object) -> "Preprocessing":
        """The preprocessing that `as_dict` described; anything else is refused.

        Args:
            facts: what `as_dict` gave, as read back from JSON.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(facts, dict) or set(facts) != names:
            raise BadData(f"preprocessing: exactly the fields {sorted(names)} are needed")
        try:
            return cls(**{**facts, "mean": tuple(facts["mean"]), "std": tuple(facts["std"])})
        except (TypeError, OverflowError) as error:
            raise BadData(f"preprocessing: {error}") from None


def _centre(height: int, width: int) -> list[int] | None:
    """The square in the middle of a picture more than eight times as long as wide, else None."""
    short, long = sorted((height, width))
    return [short, short] if long > 8 * short else None
