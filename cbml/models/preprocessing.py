"""What a network expects of its images, as plain data, and the two functions that obey it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import functional as transforms

from cbml.errors import BadData

# Of a longer image only the middle is resized: a line of 65,500 × 1 would take gigabytes.
_LONGEST = 9


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How uint8 RGB images become the numbers a network was trained on.

        value = (pixel · scale - mean) / std        per channel, after resize, crop and order

    Args:
        mean: per channel, in the order of `order`.
        std: likewise.
        scale: 1/255 for networks that saw numbers from 0 to 1; 1 for those that saw 0 to 255.
        order: "RGB", or "BGR" for networks that came from Caffe.
        resize: the short side is brought to this many pixels first; the paper's test uses 256.
        crop: side of the square cut from the center; the paper uses 227.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale: float = 1 / 255
    order: str = "RGB"
    resize: int = 256
    crop: int = 227

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3 or not all(-1e4 < value < 1e4 for value in values):
                raise BadData(f"preprocessing: {name} is {values}; three finite numbers are needed")
            object.__setattr__(self, name, values)
        if not (min(self.std) > 0 and 0 < self.scale <= 1):
            raise BadData("preprocessing: std must be positive, scale above 0 and at most 1")
        if self.order not in ("RGB", "BGR"):
            raise BadData(f"preprocessing: order is {self.order!r}, not 'RGB' or 'BGR'")
        whole = type(self.crop) is int and type(self.resize) is int
        if not (whole and 1 <= self.crop <= self.resize <= 10_000):
            raise BadData(
                f"preprocessing: crop {self.crop} must lie between 1 and resize {self.resize}"
            )

    def with_crop(self, crop: int) -> "Preprocessing":
        """The same for another size, resized in the paper's proportion of 256 to 227.

        Args:
            crop: side of the square that the network sees.
        """
        return dataclasses.replace(self, crop=crop, resize=max(crop, round(crop * 256 / 227)))

    def frame(self, image: Tensor) -> Tensor:
        """The center of a uint8 image, resized and cropped: (3, H, W) -> (3, crop, crop).

        Args:
            image: uint8 RGB, channels first.
        """
        for axis in (1, 2):
            longest = _LONGEST * min(image.shape[1:])
            if image.shape[axis] > longest:
                image = image.narrow(axis, (image.shape[axis] - longest) // 2, longest)
        short = min(image.shape[1:])
        size = [max(self.resize, self.resize * side // short) for side in image.shape[1:]]
        if size != list(image.shape[1:]):
            # Not by torchvision, which takes another way, and rounds differently, without AVX2.
            image = interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
        framed: Tensor = transforms.center_crop(image, [self.crop, self.crop])
        return framed

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 RGB images as the network's float32 input; the shape stays: (..., 3, H, W).

        Args:
            images: uint8 RGB, channels first.
        """
        values = images.flip(-3) if self.order == "BGR" else images
        mean = torch.tensor(self.mean, device=values.device).view(3, 1, 1)
        std = torch.tensor(self.std, device=values.device).view(3, 1, 1)
        return values.float() * (self.scale / std) - mean / std

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def of(cls, facts: object) -> "Preprocessing":
        """The preprocessing that `as_dict` described; anything else is refused.

        Args:
            facts: what `as_dict` gave, as read back from JSON.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(facts, dict) or set(facts) != names:
            raise BadData(f"preprocessing: exactly the fields {sorted(names)} are needed")
        try:
            return cls(**{**facts, "mean": tuple(facts["mean"]), "std": tuple(facts["std"])})
        except (TypeError, ValueError, OverflowError) as error:
            raise BadData(f"preprocessing: {error}") from None
