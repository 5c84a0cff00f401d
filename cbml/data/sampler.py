"""In which order images become batches: P classes times K images, seeded, in shares of ranks.

An epoch is a plan: (batches, P * K) image indices that follow from the labels, the seed and the
epoch alone. Any batch of it can be asked for by its number, so that resuming needs two integers.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbml.errors import BadData


class ClassBalancedSampler:
    """Batches of P classes with K images each, in which every image comes up once in an epoch.

    Each class is shuffled and cut into windows of K images; the last window wraps around to the
    start of the class, so that a class smaller than K repeats itself. An epoch has

        batches = max(ceil(windows / P), windows of the largest class)

    of them: no batch may hold a class twice. Windows are dealt to batches in P rounds, each round
    in a new random order of the batches; slots left over at the end take a random window of a
    random class. Iterating gives one epoch, from `step` on; afterwards `epoch` is one more.

    Args:
        labels: (N,) the class of each image.
        classes_per_batch: Number of classes in a batch, P.
        samples_per_class: Number of images of each class, K.
        batch_range: Smallest and largest batch size; each epoch then draws its own, and P is that
            size divided by K. The paper uses (80, 200) with pseudo-labels.
        guessed: The labels are guesses, such as clusters, and may be unbalanced. An epoch then has
            ceil(N / batch size) batches whatever they are: a class gives at most one window to each
            batch, windows without a slot wait for another epoch, and where there are fewer than P
            classes they come with more than K images each.
        seed: Random seed.
        rank: Number of this process, from 0.
        world_size: Number of processes that share each batch.
    """

    def __init__(
        self,
        labels: ArrayLike,
        *,
        classes_per_batch: int = 15,
        samples_per_class: int = 8,
        batch_range: tuple[int, int] | None = None,
        guessed: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes_per_batch = classes_per_batch
        self.samples_per_class = samples_per_class
        self.batch_range = batch_range
        self.guessed = guessed
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.step = 0
        self._kept: tuple[int, NDArray[np.int64]] | None = None
        self._check()
        self._count_classes()

    def __len__(self) -> int:
        return len(self.plan(self.epoch))

    def __iter__(self) -> Iterator[list[int]]:
        while self.step < len(self):
            indices = self.share(self.epoch, self.step).tolist()
            self.step += 1
            yield indices
        self.epoch, self.step = self.epoch + 1, 0

    def share(self, epoch: int, step: int) -> NDArray[np.int64]:
        """The image indices of this rank's share of a batch.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of the batch within the epoch.
        """
        batch: NDArray[np.int64] = self.plan(epoch)[step]
        return batch[self.rank_slice(len(batch))]

    def rank_slice(self, batch_size: int) -> slice:
        """The part of a global batch that belongs to this rank.

        Args:
            batch_size: Size of the global batch.
        """
        length = batch_size // self.world_size
        return slice(self.rank * length, (self.rank + 1) * length)

    def plan(self, epoch: int) -> NDArray[np.int64]:
        """(batches, P * K) image indices of all global batches of an epoch.

        Args:
            epoch: Number of the epoch, from 0.
        """
        if self._kept is None or self._kept[0] != epoch:
            self._kept = (epoch, self._planned(epoch))
        return self._kept[1]

    def relabel(self, labels: NDArray[np.int64]) -> None:
        """Continue with other labels of the same images; meant for the end of an epoch.

        Args:
            labels: (N,) the class of each image.
        """
        if len(labels) != len(self.labels):
            raise BadData(f"labels: {len(labels)} new ones for {len(self.labels)} images")
        self.labels = np.asarray(labels, dtype=np.int64)
        self._count_classes()

    def state_dict(self) -> dict[str, Any]:
        """The position of this sampler, and all that its plan follows from."""
        return {"epoch": self.epoch, "step": self.step, "conditions": self._conditions()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the position of another sampler over the same images.

        Args:
            state: Result of `state_dict`; refused if the batches would not be the same.
        """
        mine = self._conditions()
        for name, value in state["conditions"].items():
            if mine.get(name) != value:
                raise BadData(
                    f"sampler: {name} was {value} and is now {mine.get(name)}; the batches would "
                    "differ: resume with the former value or start from scratch"
                )
        self.epoch, self.step = int(state["epoch"]), int(state["step"])

    def _conditions(self) -> dict[str, Any]:
        return {
            "labels": hashlib.sha256(self.labels.tobytes()).hexdigest()[:16],
            "classes_per_batch": self.classes_per_batch,
            "samples_per_class": self.samples_per_class,
            "batch_range": None if self.batch_range is None else list(self.batch_range),
            "guessed": self.guessed,
            "seed": self.seed,
            "world_size": self.world_size,
        }

    def _check(self) -> None:
        if self.labels.ndim != 1 or not len(self.labels):
            raise BadData("labels: one label for each of at least one image is needed")
        if self.classes_per_batch < 1 or self.samples_per_class < 1:
            raise BadData("classes_per_batch and samples_per_class: at least 1 each")
        if not 0 <= self.rank < self.world_size:
            raise BadData(f"rank={self.rank}: must be in 0..{self.world_size - 1}")
        if self.batch_range is None:
            if (self.classes_per_batch * self.samples_per_class) % self.world_size:
                raise BadData(
                    f"a batch of {self.classes_per_batch} x {self.samples_per_class} cannot be "
                    f"shared equally by {self.world_size} processes"
                )
        elif not 0 < self.batch_range[0] <= self.batch_range[1]:
            raise BadData(f"batch_range={self.batch_range}: smallest first, both positive")
        elif self._classes_in(self.batch_range[0]) < 1:
            raise BadData(
                f"batch_range={self.batch_range}: {self.batch_range[0]} is too small for "
                f"{self.samples_per_class} images per class and {self.world_size} processes"
            )

    def _count_classes(self) -> None:
        self._kept = None
        names, self._codes, self._sizes = np.unique(
            self.labels, return_inverse=True, return_counts=True
        )
        largest = self.classes_per_batch
        if self.batch_range is not None:
            largest = self._classes_in(self.batch_range[1])
        if len(names) < largest and not self.guessed:
            raise BadData(
                f"batches of {largest} classes from a dataset of {len(names)}: set "
                "classes_per_batch to at most the number of classes, "
                f"--set classes_per_batch={len(names)}"
            )

    def _classes_in(self, batch_size: int) -> int:
        """The largest P whose batches are at most so large and can be shared by the ranks."""
        unit = self.world_size // math.gcd(self.world_size, self.samples_per_class)
        return batch_size // self.samples_per_class // unit * unit

    def _planned(self, epoch: int) -> NDArray[np.int64]:
        generator = np.random.default_rng([self.seed, epoch])
        classes = self.classes_per_batch
        if self.batch_range is not None:
            low, high = self.batch_range
            classes = self._classes_in(int(generator.integers(low, high, endpoint=True)))
        asked = classes * self.samples_per_class
        classes, images = self._fitting(classes)
        windows = -(-self._sizes // images)  # (C,)
        batches = max(-(-int(windows.sum()) // classes), int(windows.max()))
        if self.guessed:
            batches = -(-len(self.labels) // asked)
        shuffled = generator.permutation(len(self.labels))
        order = shuffled[np.argsort(self._codes[shuffled], kind="stable")]
        shape = (batches, classes, images)
        dealt, starts = _deal(self._sizes, np.minimum(windows, batches), shape, generator)
        offsets = np.cumsum(self._sizes) - self._sizes
        within = starts[:, :, None] + np.arange(images)  # (batches, P, K)
        within %= self._sizes[dealt][:, :, None]
        plan: NDArray[np.int64] = order[offsets[dealt][:, :, None] + within]
        return plan.reshape(len(plan), -1)

    def _fitting(self, classes: int) -> tuple[int, int]:
        """P and K; with fewer than P classes about as many images come from those there are."""
        if len(self._sizes) >= classes:
            return classes, self.samples_per_class
        asked, classes = classes * self.samples_per_class, len(self._sizes)
        unit = self.world_size // math.gcd(self.world_size, classes)
        return classes, max(1, asked // classes // unit) * unit


def _deal(
    sizes: NDArray[np.int64],
    windows: NDArray[np.int64],
    shape: tuple[int, int, int],
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The class and the first image of each window, (batches, P) each.

    `windows` says how many windows of each class to deal, at most one for each batch; `shape` is
    the number of batches, of classes P in each and of images K in a window. Windows are dealt in P
    rounds, each round in a new random order of the batches, so that no batch gets a class twice.
    Slots left over take a random window of a random class; windows without a slot are left out.
    """
    batches, classes, images = shape
    total = int(windows.sum())
    queue = generator.permutation(len(sizes))
    owner = np.repeat(queue, windows[queue])  # (total,) windows of a class stand together
    first = np.cumsum(windows[queue]) - windows[queue]
    start = (np.arange(total) - np.repeat(first, windows[queue])) * images
    dealt = np.full((classes, batches), -1, dtype=np.int64)
    starts = np.zeros((classes, batches), dtype=np.int64)
    taken = np.empty(0, dtype=np.int64)  # batches that hold the class cut by the end of a round
    for number in range(classes):
        order = generator.permutation(batches)
        # A class that continues from the round before must not meet itself in a batch.
        order = np.concatenate([order[~np.isin(order, taken)], order[np.isin(order, taken)]])
        here = slice(number * batches, (number + 1) * batches)
        count = len(owner[here])
        dealt[number, order[:count]] = owner[here]
        starts[number, order[:count]] = start[here]
        taken = order[:count][owner[here] == owner[here][-1]] if count else taken[:0]
    _fill(dealt.T, starts.T, sizes, generator)
    return dealt.T, starts.T


def _fill(
    dealt: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    generator: np.random.Generator,
) -> None:
    """Put a random window of a class that the batch does not hold yet into each empty slot."""
    for slot in np.flatnonzero((dealt < 0).any(axis=0)).tolist():
        empty = np.flatnonzero(dealt[:, slot] < 0)
        candidate = generator.integers(len(sizes), size=len(empty))
        while True:
            clash = (dealt[empty] == candidate[:, None]).any(axis=1)
            if not clash.any():
                break
            candidate[clash] = (candidate[clash] + 1) % len(sizes)
        dealt[empty, slot] = candidate
        starts[empty, slot] = generator.integers(sizes[candidate])
