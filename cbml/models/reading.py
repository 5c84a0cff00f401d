"""Items -> framed uint8 pictures in batches, in their order, by this process or by several."""

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

__all__ = ["Batch", "PictureReader", "as_picture"]

Load = Callable[[Any], Any]


@dataclass(frozen=True)
class Batch:
    """Framed pictures and their names.

    Args:
        pictures: uint8, (B, 3, crop, crop).
        names: what to call each of them in a message.
    """

    pictures: Tensor
    names: list[str]


@dataclass(frozen=True)
class _Failure:
    message: str


@dataclass(frozen=True)
class PictureReader(Dataset[Any]):
    """Reads items, frames them, and remembers what they are called.

    Args:
        items: pictures, or what `load` takes.
        load: item -> picture, or None when the items are pictures.
        preprocessing: says which part of a picture is kept, and at which size.
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
        """One framed picture and its name, or what went wrong.

        Args:
            item: a picture, or what `load` takes.
            number: its place in the whole, its name if it has no path.
        """
        name = os.fspath(item) if isinstance(item, str | os.PathLike) else f"picture {number}"
        try:
            picture = as_picture(item if self.load is None else self.load(item))
            return self.preprocessing.frame(picture), name
        except Exception as error:  # whatever a reader throws, the user wants to know the picture
            reason = " ".join(str(error).split()) or type(error).__name__
            return _Failure(reason if reason.startswith(name) else f"{name}: {reason}")

    def batches(self, batch_size: int, processes: int) -> Iterator[Batch]:
        """All items, in batches, in order.

        Args:
            batch_size: pictures in a batch.
            processes: that read beside this one, each at most two batches ahead.
        """
        for batch in DataLoader(self, batch_size, num_workers=processes, collate_fn=_collect):
            yield _checked(batch)

    def stream(self, items: Iterable[Any], batch_size: int) -> Iterator[Batch]:
        """Batches of items that come one by one and are not kept.

        Args:
            items: any iterable.
            batch_size: pictures in a batch.
        """
        numbered = enumerate(items)
        while group := list(itertools.islice(numbered, batch_size)):
            yield _checked(_collect([self.read(item, number) for number, item in group]))


def as_picture(value: Any) -> Tensor:
    """A uint8 RGB picture as a tensor with channels first.

    Args:
        value: a tensor 3 × H × W, an array H × W × 3, or anything numpy reads as such an array.
    """
    if isinstance(value, str | bytes | os.PathLike):
        raise BadData("a path is not a picture: say how to read it by `load`")
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise BadData(f"expected a uint8 array H × W × 3, got {array.dtype} {array.shape}")
        picture = torch.tensor(array).permute(2, 0, 1)
    else:
        picture = value
    if picture.dtype != torch.uint8 or picture.dim() != 3 or picture.shape[0] != 3:
        shape = tuple(picture.shape)
        raise BadData(f"expected a uint8 tensor 3 × H × W, got {picture.dtype} {shape}")
    if 0 in picture.shape:
        raise BadData(f"an empty picture of shape {tuple(picture.shape)}")
    return picture


def _collect(read: list[tuple[Tensor, str] | _Failure]) -> Batch | _Failure:
    # A failure travels from a loading process as a value: an exception would come as a traceback.
    good: list[tuple[Tensor, str]] = []
    for one in read:
        if isinstance(one, _Failure):
            return one
        good.append(one)
    return Batch(torch.stack([picture for picture, _ in good]), [name for _, name in good])


def _checked(batch: Batch | _Failure) -> Batch:
    if isinstance(batch, _Failure):
        raise BadData(batch.message)
    return batch
