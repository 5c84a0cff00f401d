"""In which order pictures become batches: P classes times K pictures, seeded, in shares of ranks.

A pass is a plan: (batches, P * K) picture numbers that follow from the labels, the seed and the
epoch alone. Any batch of it can be asked for by its number, so that resuming needs two integers.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbml.data.dealing import deal
from cbml.errors import BadData

__all__ = ["ClassBalancedSampler", "InOrder"]


class ClassBalancedSampler:
    """Batches of P classes with K pictures each, in which every picture comes up once in a pass.

    Each class is shuffled and cut into windows of K pictures; the last window goes on from the
    start of the class, so that a class smaller than K repeats itself. A pass has

        batches = max(ceil(windows / P), windows of the largest class)

    of them: no batch may hold a class twice. Windows are dealt to batches in P rounds, each round
    in a new random order of the batches; places left over at the end take a random window of a
    random class. Iterating gives one pass, from `step` on; afterwards `epoch` is one more.

    Args:
        labels: (N,) the class of each picture.
        classes_per_batch: P.
        pictures_per_class: K.
        batch_range: smallest and largest batch size; each epoch then draws its own, and P is that
            size divided by K. The paper uses (80, 200) with pseudo-labels.
        guessed: the labels are guesses, such as clusters, and may be lopsided. A pass then has
            ceil(N / batch size) batches whatever they are: a class gives at most one window to
            each batch, windows without a place wait for another pass, and where there are fewer
            than P classes they come with more than K pictures each.
        seed: of everything random.
        rank: which share of each batch this process gets.
        world_size: how many processes share each batch.
    """

    def __init__(
        self,
        labels: ArrayLike,
        *,
        classes_per_batch: int = 15,
        pictures_per_class: int = 8,
        batch_range: tuple[int, int] | None = None,
        guessed: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes_per_batch = classes_per_batch
        self.pictures_per_class = pictures_per_class
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
        """The picture numbers of this rank's share of a batch.

        Args:
            epoch: which pass.
            step: which batch of it.
        """
        batch: NDArray[np.int64] = self.plan(epoch)[step]
        return batch[self.places(len(batch))]

    def places(self, batch_size: int) -> slice:
        """Which places of a global batch belong to this rank.

        Args:
            batch_size: of the global batch.
        """
        length = batch_size // self.world_size
        return slice(self.rank * length, (self.rank + 1) * length)

    def plan(self, epoch: int) -> NDArray[np.int64]:
        """(batches, P * K) picture numbers of all global batches of a pass.

        Args:
            epoch: which pass.
        """
        if self._kept is None or self._kept[0] != epoch:
            self._kept = (epoch, self._planned(epoch))
        return self._kept[1]

    def relabel(self, labels: NDArray[np.int64]) -> None:
        """Go on with other labels of the same pictures; meant for the end of a pass.

        Args:
            labels: (N,) the class of each picture.
        """
        if len(labels) != len(self.labels):
            raise BadData(f"labels: {len(labels)} new ones for {len(self.labels)} pictures")
        self.labels = np.asarray(labels, dtype=np.int64)
        self._count_classes()

    def state_dict(self) -> dict[str, Any]:
        """Where this sampler stands and what its plan follows from."""
        return {"epoch": self.epoch, "step": self.step, "conditions": self._conditions()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another sampler over the same pictures stood.

        Args:
            state: what `state_dict` gave; refused if the batches would not be the same.
        """
        mine = self._conditions()
        for name, value in state["conditions"].items():
            if mine.get(name) != value:
                raise BadData(
                    f"sampler: {name} was {value} and is now {mine.get(name)}; the batches would "
                    "differ: resume with the former value or start anew"
                )
        self.epoch, self.step = int(state["epoch"]), int(state["step"])

    def _conditions(self) -> dict[str, Any]:
        return {
            "labels": hashlib.sha256(self.labels.tobytes()).hexdigest()[:16],
            "classes_per_batch": self.classes_per_batch,
            "pictures_per_class": self.pictures_per_class,
            "batch_range": None if self.batch_range is None else list(self.batch_range),
            "guessed": self.guessed,
            "seed": self.seed,
            "world_size": self.world_size,
        }

    def _check(self) -> None:
        if self.labels.ndim != 1 or not len(self.labels):
            raise BadData("labels: one label for each of at least one picture is needed")
        if self.classes_per_batch < 1 or self.pictures_per_class < 1:
            raise BadData("classes_per_batch and pictures_per_class: at least 1 each")
        if not 0 <= self.rank < self.world_size:
            raise BadData(f"rank={self.rank}: must be in 0..{self.world_size - 1}")
        if self.batch_range is None:
            if (self.classes_per_batch * self.pictures_per_class) % self.world_size:
                raise BadData(
                    f"a batch of {self.classes_per_batch} x {self.pictures_per_class} cannot be "
                    f"shared equally by {self.world_size} processes"
                )
        elif not 0 < self.batch_range[0] <= self.batch_range[1]:
            raise BadData(f"batch_range={self.batch_range}: smallest first, both positive")
        elif self._classes_in(self.batch_range[0]) < 1:
            raise BadData(
                f"batch_range={self.batch_range}: {self.batch_range[0]} is too small for "
                f"{self.pictures_per_class} pictures per class and {self.world_size} processes"
            )

    def _count_classes(self) -> None:
        self._kept = None
        names, self._numbers, self._sizes = np.unique(
            self.labels, return_inverse=True, return_counts=True
        )
        largest = self.classes_per_batch
        if self.batch_range is not None:
            largest = self._classes_in(self.batch_range[1])
        if len(names) < largest and not self.guessed:
            raise BadData(
                f"batches of {largest} classes from a set of {len(names)}: set classes_per_batch "
                f"to at most the number of classes, --set classes_per_batch={len(names)}"
            )

    def _classes_in(self, batch_size: int) -> int:
        """The largest P whose batches are at most so large and can be shared by the ranks."""
        unit = self.world_size // math.gcd(self.world_size, self.pictures_per_class)
        return batch_size // self.pictures_per_class // unit * unit

    def _planned(self, epoch: int) -> NDArray[np.int64]:
        generator = np.random.default_rng([self.seed, epoch])
        classes = self.classes_per_batch
        if self.batch_range is not None:
            low, high = self.batch_range
            classes = self._classes_in(int(generator.integers(low, high, endpoint=True)))
        asked = classes * self.pictures_per_class
        classes, pictures = self._fitting(classes)
        windows = -(-self._sizes // pictures)  # (C,)
        batches = max(-(-int(windows.sum()) // classes), int(windows.max()))
        if self.guessed:
            batches = -(-len(self.labels) // asked)
        shuffled = generator.permutation(len(self.labels))
        order = shuffled[np.argsort(self._numbers[shuffled], kind="stable")]
        shape = (batches, classes, pictures)
        dealt, starts = deal(self._sizes, np.minimum(windows, batches), shape, generator)
        offsets = np.cumsum(self._sizes) - self._sizes
        within = starts[:, :, None] + np.arange(pictures)  # (batches, P, K)
        within %= self._sizes[dealt][:, :, None]
        plan: NDArray[np.int64] = order[offsets[dealt][:, :, None] + within]
        return plan.reshape(len(plan), -1)

    def _fitting(self, classes: int) -> tuple[int, int]:
        """P and K; with fewer than P classes about as many pictures come from those there are."""
        if len(self._sizes) >= classes:
            return classes, self.pictures_per_class
        asked, classes = classes * self.pictures_per_class, len(self._sizes)
        unit = self.world_size // math.gcd(self.world_size, classes)
        return classes, max(1, asked // classes // unit) * unit


class InOrder:
    """Batches of all pictures in their own order, once, for tests and embeddings.

    Args:
        count: how many pictures there are.
        batch_size: pictures in each batch; the last one may have fewer.
    """

    seed = 0
    rank = 0
    world_size = 1

    def __init__(self, count: int, *, batch_size: int = 64) -> None:
        self.count = count
        self.batch_size = batch_size
        self.epoch = 0
        self.step = 0

    def __len__(self) -> int:
        return math.ceil(self.count / self.batch_size)

    def share(self, epoch: int, step: int) -> NDArray[np.int64]:
        """The picture numbers of a batch.

        Args:
            epoch: not used; every pass is the same.
            step: which batch.
        """
        del epoch
        start = step * self.batch_size
        return np.arange(start, min(start + self.batch_size, self.count))

    def places(self, batch_size: int) -> slice:
        """All places of a batch.

        Args:
            batch_size: of the batch.
        """
        return slice(0, batch_size)
