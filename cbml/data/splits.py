"""Which classes train, which choose the model, which report; all by class, seeded and recorded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.data.images import ImageSet, Splits
from cbml.errors import BadData

__all__ = ["Fold", "described", "halves", "hold_out", "paired", "with_validation"]


@dataclass(frozen=True)
class Fold:
    """One part of the training classes, cut into `of` parts, to choose the model by.

    Args:
        number: which part, from 0.
        of: how many parts the training classes are cut into.
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of or self.of < 2:
            raise BadData(f"Fold({self.number}, of={self.of}): number must be in 0..of-1, of >= 2")


def hold_out(
    classes: int, *, validation: float | Fold, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Class numbers to train on and class numbers to hold out, each sorted.

    The classes are shuffled with the seed; a share takes the first of them, a fold every `of`-th.

    Args:
        classes: how many training classes there are.
        validation: the share of the classes to hold out, 0 for none; or one fold.
        seed: of the shuffle.
    """
    shuffled = np.random.default_rng(seed).permutation(classes)
    if isinstance(validation, Fold):
        held = shuffled[validation.number :: validation.of]
    elif 0 <= validation < 1:
        least = 1 if validation > 0 and classes > 1 else 0
        held = shuffled[: max(least, round(validation * classes))]
    else:
        raise BadData(f"validation={validation}: a share of classes in [0, 1), or a Fold")
    if classes and len(held) >= classes:
        raise BadData(
            f"validation={validation}: of {classes} training classes none would be left to train; "
            "ask for a smaller share or more folds"
        )
    return np.setdiff1d(np.arange(classes), held), np.sort(held)


def with_validation(
    train: ImageSet, *, validation: float | Fold, seed: int
) -> tuple[ImageSet, ImageSet]:
    """The training set without its held-out classes, and the held-out classes.

    Args:
        train: all pictures of the training classes.
        validation: as for `hold_out`.
        seed: as for `hold_out`.
    """
    if train.labels is None:
        return train, ImageSet(())
    kept, held = hold_out(len(train.class_names), validation=validation, seed=seed)
    return train.of_classes(kept), train.of_classes(held)


def halves(
    images: ImageSet, *, test: float, validation: float | Fold, seed: int, source: Path
) -> tuple[ImageSet, ImageSet, ImageSet | None]:
    """Train, validation and test of a set without a protocol, no class in two of them.

    Args:
        images: all pictures, labelled.
        test: the share of the classes to test on; 0 for none.
        validation: the share of the remaining classes to hold out, or a fold.
        seed: of the shuffle of the classes.
        source: the folder or table, for messages.
    """
    if not 0 <= test < 1:
        raise BadData(f"test={test}: a share of classes in [0, 1)")
    classes = len(images.class_names)
    if test == 0:
        return *with_validation(images, validation=validation, seed=seed), None
    if classes < 4:
        raise BadData(
            f"{source}: {classes} classes are too few to keep some for the test (4 are needed); "
            "add classes, name the split yourself, or pass test=0 to train on all"
        )
    shuffled = np.random.default_rng(seed).permutation(classes)
    count = min(max(round(test * classes), 1), classes - 1)
    rest = images.of_classes(shuffled[count:])
    train, held = with_validation(rest, validation=validation, seed=seed)
    return train, held, images.of_classes(shuffled[:count])


def paired(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """The queries and the gallery of a set with roles; their labels mean the same classes.

    Args:
        images: a set whose `roles` are known.
    """
    roles = np.array(images.roles)

    def part(role: str) -> ImageSet:
        places = np.flatnonzero(roles == role).tolist()
        paths = tuple(images.paths[place] for place in places)
        return ImageSet(
            paths, images.known_labels[places], images.class_names, (role,) * len(paths)
        )

    return part("query"), part("gallery")


def described(splits: Splits) -> dict[str, Any]:
    """Pictures and classes of every split, as stored in run records.

    Args:
        splits: what a function of the catalogue gave.
    """
    return {
        name: {
            "pictures": len(images),
            "classes": 0 if images.labels is None else len(set(images.labels.tolist())),
        }
        for name, images in splits.parts().items()
    }
