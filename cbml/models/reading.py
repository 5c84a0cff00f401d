"""Items -> framed uint8 images in batches, in their order, by this process or by several."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cbml.errors import BadData
from cbml.models.preprocessing import Preprocessing

Load = Callable[[Any], Any]


@dataclass(frozen=True)
class Batch:
    """Framed images and their names.

    Args:
        images: uint8, (B, 3, crop, crop).
        names: what to call each of them in a message.
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
        items: images, or what `load` takes.
        load: item -> image, or None when the items are images.
        preprocessing: says which part of an image is kept, and at which size.
        start: number of the first item to read.
        stop: number behind the last.
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
            item: an image, or what `load` takes.
            number: its place in the whole, its name if it has no path.
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
            batch_size: images in a batch.
            processes: that read beside this one, each at most two batches ahead.
        """
        for batch in DataLoader(self, batch_size, num_workers=processes, collate_fn=_collect):
            yield _checked(batch)

    def stream(self, items: Iterable[Any], batch_size: int) -> Iterator[Batch]:
        """Batches of items that come one by one and are not kept.

        Args:
            items: any iterable.
            batch_size: images in a batch.
        """
        numbered = enumerate(items)
        while group := list(itertools.islice(numbered, batch_size)):
            yield _checked(_collect([self.read(item, number) for number, item in group]))


def as_image(value: Any) -> Tensor:
    """A uint8 RGB image as a tensor with channels first.

    Args:
        value: a tensor 3 × H × W, an array H × W × 3, or anything numpy reads as such an array.
    """
    if isinstance(value, str | bytes | os.PathLike):
        raise BadData("a path is not an image: say how to read it by `load`")
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
