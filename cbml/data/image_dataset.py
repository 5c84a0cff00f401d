"""Which images there are and what is known of them: the plain data that all packages share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData

ROLES = ("query", "gallery")


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images on disk, their classes, and their roles in a search.

    Labels count from 0 within this set, without gaps, so that they can index a table of proxies;
    two sets name the same class by the same class name, not by the same number.

    Args:
        paths: One file per image.
        labels: (N,) the class of each image as an index into `class_names`; None when unknown.
        class_names: The name of each class; empty when the labels are unknown.
        roles: "query" or "gallery" for each image; None when every image is both.
    """

    paths: tuple[Path, ...]
    labels: NDArray[np.int64] | None = None
    class_names: tuple[str, ...] = ()
    roles: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.roles is not None:
            _same_length("roles", len(self.roles), len(self.paths))
            unknown = set(self.roles) - set(ROLES)
            if unknown:
                raise BadData(f"roles: {sorted(unknown)[0]!r} is neither 'query' nor 'gallery'")
        if self.labels is None:
            return
        labels = np.array(self.labels, dtype=np.int64)
        _same_length("labels", len(labels), len(self.paths))
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.class_names):
            raise BadData(
                f"labels: from {labels.min()} to {labels.max()}, but there are "
                f"{len(self.class_names)} class names; labels index them from 0"
            )
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def known_labels(self) -> NDArray[np.int64]:
        """(N,) the labels of a set that must have them."""
        if self.labels is None:
            raise BadData(
                f"{_place(self.paths)}: these images have no labels; put each class into a "
                "folder of its own, or train with pseudo-labels"
            )
        return self.labels

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> "ImageDataset":
        """The images at `indices`, in that order; classes left without an image are dropped.

        Args:
            indices: Positions in this dataset.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        places = chosen.tolist()
        paths = tuple(self.paths[place] for place in places)
        roles = None if self.roles is None else tuple(self.roles[place] for place in places)
        if self.labels is None:
            return ImageDataset(paths, roles=roles)
        kept, labels = np.unique(self.labels[chosen], return_inverse=True)
        names = tuple(self.class_names[label] for label in kept.tolist())
        return ImageDataset(paths, labels, names, roles)

    def of_classes(self, classes: Sequence[int] | NDArray[np.int64]) -> "ImageDataset":
        """The images of some classes, in the order of this set.

        Args:
            classes: Labels of this dataset.
        """
        return self.subset(np.flatnonzero(np.isin(self.known_labels, np.asarray(classes))))

    def joined(self, other: "ImageDataset") -> "ImageDataset":
        """This set followed by another; classes of one name become one class.

        Args:
            other: The images to add, labeled if these are.
        """
        if (self.labels is None) != (other.labels is None):
            raise BadData("joined: one of the two sets has labels and the other has none")
        roles = None
        if self.roles is not None and other.roles is not None:
            roles = self.roles + other.roles
        paths = self.paths + other.paths
        if self.labels is None or other.labels is None:
            return ImageDataset(paths, roles=roles)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        mapped = [numbers.setdefault(name, len(numbers)) for name in other.class_names]
        added = np.array(mapped, dtype=np.int64)[other.labels] if len(other) else other.labels
        return ImageDataset(paths, np.concatenate([self.labels, added]), tuple(numbers), roles)

    def class_sizes(self) -> NDArray[np.int64]:
        """(C,) the number of images of each class."""
        return np.bincount(self.known_labels, minlength=len(self.class_names))


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a dataset: train, validation, and either test or query and gallery.

    Args:
        train: The training images.
        validation: Held-out training classes; empty when none were asked for.
        test: The test images; None where query and gallery take its place, or without labels.
        query: The queries, where the protocol separates them from the gallery; else None.
        gallery: The images that are searched; labels mean the same classes as in `query`.
        record: What was recognized and decided (layout, counts, seed ...), plain enough for JSON.
    """

    train: ImageDataset
    validation: ImageDataset
    test: ImageDataset | None = None
    query: ImageDataset | None = None
    gallery: ImageDataset | None = None
    record: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> dict[str, ImageDataset]:
        """The splits that exist, by name."""
        named = {
            "train": self.train,
            "validation": self.validation,
            "test": self.test,
            "query": self.query,
            "gallery": self.gallery,
        }
        return {name: images for name, images in named.items() if images is not None}


def _same_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise BadData(f"{name}: {length} given for {expected} images; one each is needed")


def _place(paths: tuple[Path, ...]) -> str:
    return str(paths[0].parent) if paths else "an empty set"
