"""What a network expects of its images, as plain data, and the two functions that obey it."""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from cbml.errors import BadData

# Of a longer image only the middle is resized: a line of 65,500 × 1 would take gigabytes.
_LONGEST = 9


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How uint8 RGB images become the numbers a network was trained on.

        value = (pixel · scale - mean) / std        per channel, after resize, crop and order

    Args:
        mean: Mean per channel, in the order of `order`.
        std: Standard deviation per channel, in the same order.
        scale: 1/255 for networks that saw numbers from 0 to 1; 1 for those that saw 0 to 255.
        order: "RGB", or "BGR" for networks that came from Caffe.
        resize: The short side is brought to this many pixels first; the paper's test uses 256.
        crop: Side of the square cut from the center; the paper uses 227.
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
            crop: Side of the square that the network sees.
        """
        return dataclasses.replace(self, crop=crop, resize=max(crop, round(crop * 256 / 227)))

    def frame(self, image: Tensor) -> Tensor:
        """The center of a uint8 image, resized and cropped: (3, H, W) -> (3, crop, crop).

        Args:
            image: Image as uint8 RGB, channels first.
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
        top, left = (round((side - self.crop) / 2) for side in image.shape[1:])
        return image[:, top : top + self.crop, left : left + self.crop]

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 RGB images as the network's float32 input; the shape stays: (..., 3, H, W).

        Args:
            images: Images as uint8 RGB, channels first.
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
    def of(cls, plain: object) -> "Preprocessing":
        """The preprocessing that `as_dict` described; anything else is refused.

        Args:
            plain: What `as_dict` gave, as read back from JSON.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(plain, dict) or set(plain) != names:
            raise BadData(f"preprocessing: exactly the fields {sorted(names)} are needed")
        try:
            return cls(**{**plain, "mean": tuple(plain["mean"]), "std": tuple(plain["std"])})
        except (TypeError, ValueError, OverflowError) as error:
            raise BadData(f"preprocessing: {error}") from None


# Items -> framed uint8 images in batches, in their order, by this process or by several.

Load = Callable[[Any], Any]


@dataclass(frozen=True)
class Batch:
    """Framed images and their names.

    Args:
        images: uint8, (B, 3, crop, crop).
        names: What to call each of them in a message.
    """

    images: Tensor
    names: list[str]


@dataclass(frozen=True)
class _Failure:
    message: str


@dataclass(frozen=True)
class ImageReader(Dataset[Any]):
    """Reads items, frames them, and remembers what they are called.

    Args:
        items: Images, or what `load` takes.
        load: Item -> image, or None when the items are images.
        preprocessing: Which part of an image is kept, and at which size.
        start: Number of the first item to read.
    """

    items: Sequence[Any]
    load: Load | None
    preprocessing: Preprocessing
    start: int = 0
    stop: int = 0

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> tuple[Tensor, str] | _Failure:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.read(self.items[self.start + index], self.start + index)

    def read(self, item: Any, number: int) -> tuple[Tensor, str] | _Failure:
        """One framed image and its name, or what went wrong.

        Args:
            number: Its place in the whole, its name if it has no path.
        """
        name = os.fspath(item) if isinstance(item, str | os.PathLike) else f"image {number}"
        try:
            image = as_image(item if self.load is None else self.load(item))
            return self.preprocessing.frame(image), name
        except Exception as error:  # whatever a reader throws, the user wants to know the image
            reason = " ".join(str(error).split()) or type(error).__name__
            return _Failure(reason if reason.startswith(name) else f"{name}: {reason}")

    def batches(self, batch_size: int, processes: int) -> Iterator[Batch]:
        """All items, in batches, in order.

        Args:
            processes: Processes that read beside this one, each at most two batches ahead.
        """
        for batch in DataLoader(self, batch_size, num_workers=processes, collate_fn=_collect):
            yield _checked(batch)

    def stream(self, items: Iterable[Any], batch_size: int) -> Iterator[Batch]:
        """Batches of items that come one by one and are not kept."""
        numbered = enumerate(items)
        while group := list(itertools.islice(numbered, batch_size)):
            yield _checked(_collect([self.read(item, number) for number, item in group]))


def as_image(value: Any) -> Tensor:
    """A uint8 RGB image as a tensor with channels first.

    Args:
        value: A tensor 3 × H × W, an array H × W × 3, or anything numpy reads as such an array.
    """
    if isinstance(value, str | bytes | os.PathLike):
        raise BadData("a path is not an image; pass `load` to read it")
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise BadData(f"expected a uint8 array H × W × 3, got {array.dtype} {array.shape}")
        image = torch.tensor(array).permute(2, 0, 1)
    else:
        image = value
    if image.dtype != torch.uint8 or image.dim() != 3 or image.shape[0] != 3:
        shape = tuple(image.shape)
        raise BadData(f"expected a uint8 tensor 3 × H × W, got {image.dtype} {shape}")
    if 0 in image.shape:
        raise BadData(f"an empty image of shape {tuple(image.shape)}")
    return image


def _collect(read: list[tuple[Tensor, str] | _Failure]) -> Batch | _Failure:
    # A failure travels from a loading process as a value: an exception would come as a traceback.
    good: list[tuple[Tensor, str]] = []
    for one in read:
        if isinstance(one, _Failure):
            return one
        good.append(one)
    return Batch(torch.stack([image for image, _ in good]), [name for _, name in good])


def _checked(batch: Batch | _Failure) -> Batch:
    if isinstance(batch, _Failure):
        raise BadData(batch.message)
    return batch
