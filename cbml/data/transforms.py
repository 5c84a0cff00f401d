"""Images -> equal-sized pixels -> numbers for a network: the paper's crops and normalizations.

Parts, sizes and pixels are those of torchvision.transforms.v2 on uint8 tensors, to the bit.
Randomness arrives as a generator. One batch takes one block of uniform numbers, a row for each
place of the batch, so that an image's crop depends on its place alone: every rank can draw the
whole block and use its own rows, and a resumed run draws what the unbroken one drew.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from cbml.errors import BadData

# The paper resizes the short side to 256 and crops 227 of it; other crops keep that proportion.
_PAPER_SHORT_SIDE = 256
_PAPER_CROP = 227

# With the paper's scale and ratio no random part fits an image longer than 8.3 times its short
# side, so the center is taken: a part nine times as long as short holds all that is ever seen.
_LONGEST = 9


def short_side(crop: int) -> int:
    """The length to which the short side is resized before a crop: 256 for 227, 108 for 96.

    Args:
        crop: The side of the square that the network sees.
    """
    if crop < 1:
        raise BadData(f"crop={crop}: at least 1 pixel")
    return max(crop, round(crop * _PAPER_SHORT_SIDE / _PAPER_CROP))


@dataclass(frozen=True)
class TrainTransform:
    """A random part of the image, resized to a square, and mirrored half of the time.

    The short side is first resized to `short_side(crop)`. Then, as torchvision's
    RandomResizedCrop does it, ten parts are tried whose area is uniform in `scale` of the image
    and whose ratio of width to height is log-uniform in `ratio`; the first that fits is taken, and
    the largest central part of an allowed ratio if none does.

    Args:
        crop: The side of the square; 227 in the paper.
        scale: Smallest and largest share of the area; (0.16, 1) in the authors' program.
        ratio: Smallest and largest width / height; torchvision's default.
        flip: Probability that the image is mirrored; 0.5 in the authors' program.
    """

    crop: int = 227
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    draws: ClassVar[int] = 23  # ten areas, ten ratios, top, left, mirror

    def __call__(self, pixels: Tensor, generator: np.random.Generator) -> Tensor:
        """One crop of one image, (3, crop, crop) uint8.

        Args:
            pixels: (3, H, W) uint8.
        """
        resized = resized_short_side(pixels, short_side(self.crop))
        boxes, mirrored = self.boxes(
            np.array([resized.shape[1:]]), generator.random((1, self.draws))
        )
        return self.cut(resized, boxes[0], bool(mirrored[0]))

    def boxes(
        self, sizes: NDArray[np.int64], uniform: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Parts (B, 4) as top, left, height, width, and whether to mirror (B,), for a batch.

        Args:
            sizes: (B, 2) height and width of each resized image.
            uniform: (B, 23) numbers in [0, 1).
        """
        height, width = sizes[:, :1].astype(np.float64), sizes[:, 1:].astype(np.float64)  # (B, 1)
        low, high = self.scale
        area = height * width * (low + (high - low) * uniform[:, :10])  # (B, 10)
        narrow, wide = np.log(self.ratio)
        ratio = np.exp(narrow + (wide - narrow) * uniform[:, 10:20])
        widths, heights = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
        first = fits.argmax(axis=1)[:, None]
        part = np.concatenate(
            [np.take_along_axis(heights, first, 1), np.take_along_axis(widths, first, 1)], axis=1
        )
        part = np.where(fits.any(axis=1)[:, None], part, self._central(sizes)).astype(np.int64)
        corner = np.floor(uniform[:, 20:22] * (sizes - part + 1)).astype(np.int64)
        middle = (sizes - part) // 2
        corner = np.where(fits.any(axis=1)[:, None], corner, middle)
        return np.concatenate([corner, part], axis=1), uniform[:, 22] < self.flip

    def _central(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        height, width = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
        narrow, wide = self.ratio
        ratio = width / height
        heights = np.where(ratio < narrow, np.rint(width / narrow), height)
        widths = np.where(ratio > wide, np.rint(height * wide), width)
        return np.stack([np.minimum(heights, height), np.minimum(widths, width)], axis=1)

    def cut(self, pixels: Tensor, box: NDArray[np.int64], mirrored: bool) -> Tensor:
        """The part of a resized image inside a box, as a square, (3, crop, crop) uint8.

        Args:
            pixels: (3, H, W) uint8, short side already resized.
            box: Top, left, height and width.
            mirrored: Whether left and right change places.
        """
        top, left, height, width = box.tolist()
        part = pixels[:, top : top + height, left : left + width]
        square = _resized(part, self.crop, self.crop)
        return square.flip(-1) if mirrored else square


def resized_short_side(pixels: Tensor, length: int) -> Tensor:
    """The image with its short side resized to a length, its proportions kept.

    Of an image more than nine times as long as short only the middle is kept: resizing a line of
    65,500 x 1 pixels as a whole would take gigabytes.

    Args:
        pixels: Image as uint8, (3, H, W).
    """
    for axis in (1, 2):
        longest = _LONGEST * min(pixels.shape[1:])
        if pixels.shape[axis] > longest:
            pixels = pixels.narrow(axis, (pixels.shape[axis] - longest) // 2, longest)
    height, width = pixels.shape[1:]
    if height <= width:
        return _resized(pixels, length, max(length, int(length * width / height)))
    return _resized(pixels, max(length, int(length * height / width)), length)


def _resized(pixels: Tensor, height: int, width: int) -> Tensor:
    if tuple(pixels.shape[1:]) == (height, width):
        return pixels
    # The kernel behind torchvision.transforms.v2, called directly: the tests compare the two to
    # the bit, and importing torchvision would double the time it takes to import this package.
    return interpolate(pixels[None], size=(height, width), mode="bilinear", antialias=True)[0]


@dataclass(frozen=True)
class Normalization:
    """uint8 pixels -> the numbers a backbone was trained on.

        value = (pixel * scale - mean) / std, channel by channel, after the order of channels

    Args:
        mean: Subtracted from each channel, in the order of the network's channels.
        std: What each channel is divided by.
        scale: 1/255 for backbones that saw numbers in [0, 1]; 1 for those that saw 0 to 255.
        order: "RGB", or "BGR" for backbones from Caffe.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale: float = 1 / 255
    order: str = "RGB"

    def __post_init__(self) -> None:
        if self.order not in {"RGB", "BGR"}:
            raise BadData(f"order={self.order!r}: 'RGB' or 'BGR'")

    def __call__(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) float32 on the device of the pixels.

        Args:
            pixels: (B, 3, H, W) uint8, RGB.
        """
        ordered = pixels.flip(-3) if self.order == "BGR" else pixels
        std = torch.tensor(self.std, device=pixels.device).view(3, 1, 1)
        mean = torch.tensor(self.mean, device=pixels.device).view(3, 1, 1)
        return ordered.to(torch.float32).mul_(self.scale / std).sub_(mean / std)
