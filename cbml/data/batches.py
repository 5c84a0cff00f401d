"""Batches for training and test: the pictures that the sampler names, cropped and in order."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.data.ahead import in_order
from cbml.data.decode import BadPicture
from cbml.data.images import ImageSet
from cbml.data.pictures import BadPictures, FilePictures, PictureSource
from cbml.data.sampler import ClassBalancedSampler
from cbml.data.transforms import Normalisation, TestTransform, TrainTransform, short_side
from cbml.errors import BadData

__all__ = ["Batch", "Batches"]


class Batch(NamedTuple):
    """What a network learns from in one step.

    Args:
        pixels: (B, 3, crop, crop) float32, or uint8 where no normalisation was asked for.
        labels: (B,) int64; -1 where unknown.
        indices: (B,) int64, the numbers of the pictures in their set.
    """

    pixels: Tensor
    labels: Tensor
    indices: Tensor


class BatchOrder(Protocol):
    """What a sampler is to `Batches`: any batch of any pass by its number, and where we stand."""

    seed: int
    rank: int
    world_size: int
    epoch: int
    step: int

    def __len__(self) -> int: ...

    def share(self, epoch: int, step: int) -> NDArray[np.int64]:
        """The picture numbers of this rank's share of a batch.

        Args:
            epoch: which pass.
            step: which batch of it.
        """

    def places(self, batch_size: int) -> slice:
        """Which places of a global batch belong to this rank.

        Args:
            batch_size: of the global batch.
        """


class Batches:
    """One pass over a sampler's batches each time it is iterated.

    The content of a batch follows from the sampler's seed, the epoch and the step alone; workers
    change nothing but the speed. The sampler's `epoch` and `step` count what was handed out, not
    what was prepared ahead, so that its state is the state to save.

    A picture that cannot be read is noted in `bad` and replaced by the next readable one of its
    class, or of the set when the class has none: which one it is follows from the files alone, so
    that every rank sees the batches it would see if it read them all.

    Args:
        images: the set that the sampler's numbers refer to.
        sampler: the order; a ClassBalancedSampler to train, InOrder to test.
        transform: what becomes of each picture.
        normalisation: how pixels become numbers; None leaves them uint8, to be sent to a device
            in a quarter of the bytes and normalised there.
        source: where pixels come from, such as a PackedImages; the files when None.
        workers: threads that prepare batches ahead; 0 prepares each when it is asked for.
        bad_limit: the share of unreadable pictures above which BadData is raised.
    """

    def __init__(
        self,
        images: ImageSet,
        sampler: BatchOrder,
        *,
        transform: TrainTransform | TestTransform,
        normalisation: Normalisation | None = None,
        source: PictureSource | None = None,
        workers: int = 0,
        bad_limit: float = 0.05,
    ) -> None:
        self.images = images
        self.sampler = sampler
        self.transform = transform
        self.normalisation = normalisation
        self.source = FilePictures(images.paths) if source is None else source
        self.workers = workers
        self.bad = BadPictures(images.paths, limit=bad_limit)
        self.relabelled = False

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        steps = range(self.sampler.step, len(self.sampler))
        prepared = in_order(
            lambda step: self.batch(epoch, step),
            steps,
            workers=self.workers,
            ahead=self.workers,
        )
        with contextlib.closing(prepared):  # its threads end when a pass is left early
            for step, batch in zip(steps, prepared, strict=True):
                self.sampler.step = step + 1
                yield batch
        self.sampler.epoch, self.sampler.step = epoch + 1, 0

    def relabel(self, labels: NDArray[np.int64]) -> None:
        """Give the pictures other labels, between two passes.

        Args:
            labels: (N,) numbers of classes from 0.
        """
        if not isinstance(self.sampler, ClassBalancedSampler):
            raise BadData("new labels need batches of a ClassBalancedSampler")
        names = tuple(str(number) for number in range(int(labels.max()) + 1))
        self.images = dataclasses.replace(self.images, labels=labels, class_names=names)
        self.sampler.relabel(labels)
        self.relabelled = True

    def batch(self, epoch: int, step: int) -> Batch:
        """This rank's share of one batch.

        Args:
            epoch: which pass.
            step: which batch of it.
        """
        asked = self.sampler.share(epoch, step)
        length = short_side(self.transform.crop)
        found = [self._readable(index, length) for index in asked.tolist()]
        boxes, mirrored = self.transform.boxes(
            np.array([pixels.shape[1:] for _, pixels in found]),
            self._uniform(epoch, step, len(asked)),
        )
        square = (3, self.transform.crop, self.transform.crop)
        pixels = torch.empty((len(found), *square), dtype=torch.uint8)
        for place, (_, picture) in enumerate(found):
            pixels[place] = self.transform.cut(picture, boxes[place], bool(mirrored[place]))
        indices = torch.tensor([index for index, _ in found])
        normalised = pixels if self.normalisation is None else self.normalisation(pixels)
        return Batch(normalised, self._labels(indices), indices)

    def _uniform(self, epoch: int, step: int, count: int) -> NDArray[np.float64]:
        """(B, draws) numbers of this rank's places in the block of the whole batch."""
        whole = count * self.sampler.world_size
        generator = np.random.default_rng([self.sampler.seed, epoch, step])
        block = generator.random((whole, self.transform.draws))
        return block[self.sampler.places(whole)]

    def _labels(self, indices: Tensor) -> Tensor:
        if self.images.labels is None:
            return torch.full_like(indices, -1)
        return torch.from_numpy(self.images.labels[indices.numpy()])

    def _readable(self, index: int, length: int) -> tuple[int, Tensor]:
        for candidate in self._candidates(index):
            if candidate in self.bad.reasons:
                continue
            try:
                return candidate, self.source.sized(candidate, length)
            except BadPicture as refusal:
                self.bad.add(candidate, refusal.reason)
        raise BadData(f"{self.images.paths[index]}: no picture of the set can be read")

    def _candidates(self, index: int) -> Iterator[int]:
        """The picture, then those of its class behind and before it, then those of the set."""
        yield index
        if self.images.labels is not None:
            same = np.flatnonzero(self.images.labels == self.images.labels[index])
            yield from np.roll(same, -int(np.searchsorted(same, index)) - 1)[:-1].tolist()
        count = len(self.images)
        yield from ((index + step) % count for step in range(1, count))
