"""The batches of a run: sizes that fit the set and the processes, and the sampler behind them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.data import (
    Batches,
    ClassBalancedSampler,
    ImageDataset,
    PackedDataset,
    PackedImages,
    TrainTransform,
    UnreadableImages,
)
from cbml.errors import BadData
from cbml.models import embed, embed_outputs
from cbml.outputs import Outputs
from cbml.training.distributed import Distributed

# As in the authors' program for CUB.
CLASSES_PER_BATCH = 15
SAMPLES_PER_CLASS = 8
# Images embedded at a time: feature maps of more would need more memory than chunks of a batch.
EMBEDDED = 24


def build_batches(
    images: ImageDataset,
    *,
    transform: TrainTransform,
    distributed: Distributed | None = None,
    classes_per_batch: int | None = None,
    samples_per_class: int | None = None,
    batch_range: tuple[int, int] | None = None,
    seed: int = 0,
    source: PackedImages | None = None,
    workers: int = 1,
    bad_limit: float = 0.05,
) -> Batches:
    """The batches of this process: classes times images, every image once in an epoch.

    Images without labels are classes of their own until a method gives them others; their batches
    take whatever clusters there are.

    Args:
        images: The images to learn from.
        transform: Random crops of the images.
        distributed: The processes that share each batch; this one alone when None.
        classes_per_batch: None fits them to the set.
        samples_per_class: None fits them to the set.
        batch_range: Smallest and largest batch; each epoch draws its own, and the number of classes
            follows from it.
        seed: Random seed.
        source: Where pixels come from; the files when None.
        workers: Threads that prepare batches ahead.
        bad_limit: Share of unreadable images above which the run ends.
    """
    distributed = distributed or Distributed()
    if source is not None:  # too many are refused now, not after the steps that meet them
        UnreadableImages(images.paths, limit=bad_limit).add_all(source.reasons)
    guessed = images.labels is None
    if guessed:
        each = np.arange(len(images))
        images = ImageDataset(images.paths, each, tuple(map(str, each)))
        classes, samples = CLASSES_PER_BATCH, samples_per_class or SAMPLES_PER_CLASS
    else:
        classes, samples = fitted_sizes(
            images.class_sizes(),
            processes=distributed.size,
            classes=classes_per_batch,
            images=samples_per_class,
        )
    sampler = ClassBalancedSampler(
        images.known_labels,
        classes_per_batch=classes,
        samples_per_class=samples,
        batch_range=batch_range,
        guessed=guessed,
        seed=seed,
        rank=distributed.rank,
        world_size=distributed.size,
    )
    return Batches(
        images,
        sampler,
        transform=transform,
        source=source,
        workers=workers,
        bad_limit=bad_limit,
    )


def check_batches(batches: Batches, distributed: Distributed) -> None:
    """Refuse batches that cannot resume, or that are another process's share."""
    sampler = batches.sampler
    if not isinstance(sampler, ClassBalancedSampler):
        raise BadData("training needs batches of a ClassBalancedSampler: others cannot resume")
    if (sampler.rank, sampler.world_size) != (distributed.rank, distributed.size):
        raise BadData(
            f"the sampler is of process {sampler.rank} of {sampler.world_size}, this is process "
            f"{distributed.rank} of {distributed.size}: give it rank and world_size"
        )


def check_batch_shape(
    method: nn.Module, classes: int | None, samples: int | None, *, rows: int | None = None
) -> None:
    """Refuse batches that a loss or a method cannot learn from.

    Args:
        method: Says by `smallest_batch` what it needs; one that does not takes everything.
        classes: Number of classes in a batch; None where it is not known yet.
        samples: Number of images of each; None where it is not known yet.
        rows: Images of the largest batch, where it is not classes times samples.
    """
    name = type(getattr(method, "loss", None) or method).__name__
    fewest = getattr(method, "smallest_batch", (1, 1))
    if classes is not None and classes < fewest[0]:
        raise BadData(f"classes_per_batch={classes}: {name} needs at least {fewest[0]}")
    if samples is not None and samples < fewest[1]:
        raise BadData(f"samples_per_class={samples}: {name} needs at least {fewest[1]}")
    largest = getattr(getattr(method, "loss", None) or method, "largest_batch", None)
    rows = rows or (classes or 0) * (samples or 0)
    if largest is not None and rows > largest:
        raise BadData(
            f"batches of {rows} images: {name} remembers at most {largest}; use --set "
            f"loss.batch_rows={rows}"
        )


def check_training_set(method: nn.Module, batches: Batches) -> None:
    """Refuse images, or batches of them, that a loss or a method cannot learn from.

    Args:
        method: A loss has no say about the images, only about batches.
        batches: The batches as they will be drawn.
    """
    sampler, images = batches.sampler, batches.images
    assert isinstance(sampler, ClassBalancedSampler)
    classes, samples = sampler.classes_per_batch, sampler.samples_per_class
    rows = classes * samples
    if sampler.batch_range is not None:
        classes, rows = sampler.batch_range[0] // samples, sampler.batch_range[1]
    check_batch_shape(method, classes, samples, rows=rows)
    check = getattr(method, "check_images", None)
    if check is not None:
        check(np.bincount(images.known_labels, minlength=len(images.class_names)))


def steps_of_epochs(batches: Batches, epochs: int) -> int:
    """How many batches so many epochs of the sampler's own have."""
    assert isinstance(batches.sampler, ClassBalancedSampler)
    return sum(len(batches.sampler.plan(epoch)) for epoch in range(epochs))


def fitted_sizes(
    sizes: NDArray[np.int64],
    *,
    processes: int = 1,
    classes: int | None = None,
    images: int | None = None,
) -> tuple[int, int]:
    """Classes in a batch and images of each: 15 and 8 where the set and the processes allow it.

    Of small classes a batch has fewer images, a third of the median class but two at least, and
    more classes for it. With fewer classes than that all of them are in every batch, each with so
    many images that the batch keeps its size, but not with more than half of the classes have. What
    the user gives stays as it is, whether it can be had or not.

    Args:
        sizes: Number of images of each class.
        processes: Number of processes that share a batch.
        classes: Number of classes that the user gave, if any.
        images: Number of images of a class that the user gave, if any.
    """
    if not len(sizes):
        raise BadData("images: no labeled images to make batches of; give some of two classes")
    if images is not None:
        chosen, unit = min(CLASSES_PER_BATCH, len(sizes)), _unit(processes, images)
        return (max(chosen // unit, 1) * unit if classes is None else classes), images
    batch, median = CLASSES_PER_BATCH * SAMPLES_PER_CLASS, int(np.median(sizes))
    fitting = min(SAMPLES_PER_CLASS, max(2, median // 3))
    if classes is None:
        classes = min(batch // fitting, len(sizes))
        fitting = min(batch // classes, max(SAMPLES_PER_CLASS, median))
    unit = _unit(processes, classes)
    return classes, max(round(fitting / unit), 1) * unit


def _unit(processes: int, other: int) -> int:
    """What one of two sizes must be a multiple of, so that the processes can share the batch."""
    return processes // math.gcd(processes, other)


# Embeddings of a set of images, by all processes together.


class _Source(Protocol):
    def sized(self, index: int, length: int) -> Tensor: ...


def embed_dataset(
    model: nn.Module,
    dataset: PackedDataset,
    distributed: Distributed | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """Unit vectors of all readable images of a dataset, (N, D).

    Args:
        model: An Embedder, or another network with a `preprocessing`, whose crop is the one that
            the dataset was packed for.
        dataset: The images to embed.
        distributed: Processes that share the work; each gets all vectors.
        progress: Called with images done and images in all, those of this process.
    """
    return embed_indices(model, dataset.packed, dataset.indices, distributed, progress)


def embed_dataset_outputs(
    model: nn.Module,
    dataset: PackedDataset,
    parts: Sequence[str],
    distributed: Distributed | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outputs:
    """Unit vectors of all readable images of a dataset, with further parts, N rows each.

    Args:
        model: As in `embed_dataset`.
        dataset: The images to embed.
        parts: As for `Embedder.forward_outputs`.
        distributed: Processes that share the work; each gets all rows.
        progress: As in `embed_dataset`.
    """
    length: int = model.preprocessing.resize  # type: ignore[assignment]
    count = len(dataset.indices) // (1 if distributed is None else distributed.size)
    return embed_outputs(
        model,
        [int(index) for index in dataset.indices],
        parts,
        group=None if distributed is None else distributed.group,
        load=lambda index: dataset.packed.sized(index, length),
        progress=False if progress is None else lambda done: progress(done, count),
    )


def embed_indices(
    model: nn.Module,
    source: _Source,
    indices: Sequence[int] | NDArray[np.int64],
    distributed: Distributed | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """Unit vectors of some images of a source, in the order of their indices, (N, D).

    Args:
        model: As in `embed_dataset`.
        source: Where the pixels come from, packed images or files.
        indices: Indices of the images in the source.
        distributed: Processes that share the work; each gets all vectors.
        progress: As in `embed_dataset`.
    """
    length: int = model.preprocessing.resize  # type: ignore[assignment]
    listed: list[Any] = [int(index) for index in indices]

    def load(index: int) -> Tensor:
        return source.sized(index, length)

    processes = 1 if distributed is None else distributed.size

    def show(done: int) -> None:
        if progress is not None:
            progress(done, len(listed) // processes)

    group = None if distributed is None else distributed.group
    return embed(model, listed, load=load, batch_size=EMBEDDED, group=group, progress=show)
