"""Batches to train on: the images that the sampler names, cropped and in order."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.data.decode import FileImages, ImageSource, UnreadableImage, UnreadableImages, prefetch
from cbml.data.image_dataset import ImageDataset
from cbml.data.sampler import ClassBalancedSampler
from cbml.data.transforms import Normalization, TrainTransform, short_side
from cbml.errors import BadData


class Batch(NamedTuple):
    """The batch of one training step.

    Args:
        pixels: (B, 3, crop, crop) float32, or uint8 where no normalization was asked for.
        labels: (B,) int64; -1 where unknown.
        indices: (B,) int64, the indices of the images in their dataset.
    """

    pixels: Tensor
    labels: Tensor
    indices: Tensor


@dataclasses.dataclass(frozen=True)
class EpochBatches:
    """The batches of one epoch, planned by a method instead of by the labels.

    Args:
        indices: Images of each global batch. (S, B)
        labels: Class of each of them, where it is another than the image's own. (S, B)
        streams: The stream of each batch; None where there is one. (S,)
    """

    indices: NDArray[np.int64]
    labels: NDArray[np.int64] | None = None
    streams: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.indices.ndim != 2 or not self.indices.size:
            raise BadData(f"planned batches have the shape {self.indices.shape}, not (S, B)")
        if self.labels is not None and self.labels.shape != self.indices.shape:
            raise BadData("planned batches: give one label for each image of each batch")
        if self.streams is not None and self.streams.shape != self.indices.shape[:1]:
            raise BadData("planned batches: give one stream for each batch")


class BatchOrder(Protocol):
    """What a sampler is to `Batches`: any batch of any epoch by its number, and the position."""

    seed: int
    rank: int
    world_size: int
    epoch: int
    step: int

    def __len__(self) -> int: ...

    def share(self, epoch: int, step: int) -> NDArray[np.int64]:
        """The image indices of this rank's share of a batch.

        Args:
            epoch: Number of the epoch, from 0.
        """

    def rank_slice(self, batch_size: int) -> slice:
        """The part of a global batch that belongs to this rank."""


class Batches:
    """One epoch of a sampler's batches each time it is iterated.

    The content of a batch follows from the sampler's seed, the epoch and the step alone; workers
    change nothing but the speed. The sampler's `epoch` and `step` count what was handed out, not
    what was prepared ahead, so that its state is the state to save.

    An image that cannot be read is noted in `bad` and replaced by the next readable one of its
    class, or of the dataset when the class has none: which one it is follows from the files alone,
    so that every rank sees the batches it would see if it read them all.

    Args:
        images: The dataset that the sampler's indices refer to.
        sampler: The order, such as a ClassBalancedSampler.
        transform: The random crop of each image.
        normalization: How pixels become numbers; None leaves them uint8, to be sent to a device in
            a quarter of the bytes and normalized there.
        source: Where pixels come from, such as a PackedImages; the files when None.
        workers: Threads that prepare batches ahead; 0 prepares each when it is needed.
        bad_limit: The share of unreadable images above which BadData is raised.
    """

    def __init__(
        self,
        images: ImageDataset,
        sampler: BatchOrder,
        *,
        transform: TrainTransform,
        normalization: Normalization | None = None,
        source: ImageSource | None = None,
        workers: int = 0,
        bad_limit: float = 0.05,
    ) -> None:
        self.images = images
        self.sampler = sampler
        self.transform = transform
        self.normalization = normalization
        self.source = FileImages(images.paths) if source is None else source
        self.workers = workers
        self.bad = UnreadableImages(images.paths, limit=bad_limit)
        self.relabeled = False
        self.planned: EpochBatches | None = None

    def __len__(self) -> int:
        return len(self.sampler if self.planned is None else self.planned.indices)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        steps = range(self.sampler.step, len(self))
        prepared = prefetch(
            lambda step: self.batch(epoch, step),
            steps,
            workers=self.workers,
            ahead=self.workers,
        )
        with contextlib.closing(prepared):  # its threads end when an epoch is left early
            for step, batch in zip(steps, prepared, strict=True):
                self.sampler.step = step + 1
                yield batch
        self.sampler.epoch, self.sampler.step = epoch + 1, 0
        self.planned = None

    def follow(self, planned: EpochBatches | None) -> None:
        """Take the batches of the epoch about to begin from a plan instead of the sampler's own.

        Args:
            planned: Batches of this epoch alone; None leaves it to the sampler.
        """
        if planned is not None:
            size, count = planned.indices.shape[1], len(self.images)
            if size % self.sampler.world_size:
                raise BadData(
                    f"planned batches of {size} images cannot be shared equally by "
                    f"{self.sampler.world_size} processes"
                )
            if planned.indices.min() < 0 or planned.indices.max() >= count:
                raise BadData(f"planned batches name images beyond the {count} of the dataset")
        self.planned = planned

    @property
    def stream(self) -> int:
        """The stream of the batch that was handed out last; 0 where there is one stream."""
        if self.planned is None or self.planned.streams is None:
            return 0
        return int(self.planned.streams[self.sampler.step - 1])

    def relabel(self, labels: NDArray[np.int64]) -> None:
        """Give the images other labels, between two epochs.

        Args:
            labels: (N,) class of each image, from 0.
        """
        if not isinstance(self.sampler, ClassBalancedSampler):
            raise BadData("new labels need batches of a ClassBalancedSampler")
        names = tuple(str(label) for label in range(int(labels.max()) + 1))
        self.images = dataclasses.replace(self.images, labels=labels, class_names=names)
        self.sampler.relabel(labels)
        self.relabeled = True

    def batch(self, epoch: int, step: int) -> Batch:
        """This rank's share of one batch.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of the batch within the epoch.
        """
        wanted = self._share(epoch, step)
        length = short_side(self.transform.crop)
        found = [self._readable(index, length) for index in wanted.tolist()]
        boxes, mirrored = self.transform.boxes(
            np.array([pixels.shape[1:] for _, pixels in found]),
            self._uniform(epoch, step, len(wanted)),
        )
        square = (3, self.transform.crop, self.transform.crop)
        pixels = torch.empty((len(found), *square), dtype=torch.uint8)
        for row, (_, image) in enumerate(found):
            pixels[row] = self.transform.cut(image, boxes[row], bool(mirrored[row]))
        indices = torch.tensor([index for index, _ in found])
        normalized = pixels if self.normalization is None else self.normalization(pixels)
        return Batch(normalized, self._labels(indices, step), indices)

    def _share(self, epoch: int, step: int) -> NDArray[np.int64]:
        if self.planned is None:
            return self.sampler.share(epoch, step)
        whole: NDArray[np.int64] = self.planned.indices[step]
        return whole[self.sampler.rank_slice(len(whole))]

    def _uniform(self, epoch: int, step: int, count: int) -> NDArray[np.float64]:
        """(B, draws) random numbers: this rank's rows of the block of the global batch."""
        whole = count * self.sampler.world_size
        generator = np.random.default_rng([self.sampler.seed, epoch, step])
        block = generator.random((whole, self.transform.draws))
        return block[self.sampler.rank_slice(whole)]

    def _labels(self, indices: Tensor, step: int) -> Tensor:
        if self.planned is not None and self.planned.labels is not None:
            labels = self.planned.labels[step]
            return torch.from_numpy(labels[self.sampler.rank_slice(len(labels))])
        if self.images.labels is None:
            return torch.full_like(indices, -1)
        return torch.from_numpy(self.images.labels[indices.numpy()])

    def _readable(self, index: int, length: int) -> tuple[int, Tensor]:
        for candidate in self._candidates(index):
            if candidate in self.bad.reasons:
                continue
            try:
                return candidate, self.source.sized(candidate, length)
            except UnreadableImage as refusal:
                self.bad.add(candidate, refusal.reason)
        raise BadData(f"{self.images.paths[index]}: no image of the dataset can be read")

    def _candidates(self, index: int) -> Iterator[int]:
        """The image, then those of its class behind and before it, then those of the dataset."""
        yield index
        if self.images.labels is not None:
            same = np.flatnonzero(self.images.labels == self.images.labels[index])
            yield from np.roll(same, -int(np.searchsorted(same, index)) - 1)[:-1].tolist()
        count = len(self.images)
        yield from ((index + step) % count for step in range(1, count))
