"""Which classes train, which choose the model, which report; all by class, seeded and recorded."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.data.images import ImageSet, Splits
from cbml.errors import BadData

__all__ = ["Fold", "described", "halves", "hold_out", "paired", "split_notes", "with_validation"]

_FEWEST_FOR_TWO = 6
_FEWEST_TO_TEST = 4


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
    sizes: NDArray[np.int64], *, validation: float | Fold, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Class numbers to train on and class numbers to hold out, each sorted.

    The classes are shuffled with the seed; a share takes the first of them, a fold every `of`-th.
    Classes of one picture are passed over, as nothing can be found for it. A share takes two
    classes at least, since in one alone every answer is right; where that would leave fewer than
    four to train on, or where two cannot be had, it takes none.

    Args:
        sizes: pictures of each training class. (C,)
        validation: the share of the classes to hold out, 0 for none; or one fold.
        seed: of the shuffle.
    """
    classes = len(sizes)
    shuffled = np.random.default_rng(seed).permutation(classes)
    usable = shuffled[np.asarray(sizes)[shuffled] > 1]
    if isinstance(validation, Fold):
        held = usable[validation.number :: validation.of]
    elif 0 <= validation < 1:
        count = round(validation * classes)
        if validation and count < 2:
            count = 2 if classes >= _FEWEST_FOR_TWO else 0
        held = usable[:count] if len(usable) > 1 else usable[:0]
    else:
        raise BadData(f"validation={validation}: a share of classes in [0, 1), or a Fold")
    if classes < 4 and len(held) > classes - 2:
        held = held[:0]
    elif len(held) > classes - 2:
        raise BadData(
            f"validation={validation}: of {classes} training classes fewer than two would be left "
            "to train; ask for a smaller share or more folds"
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
    kept, held = hold_out(train.class_sizes(), validation=validation, seed=seed)
    return train.of_classes(kept), train.of_classes(held)


def halves(
    images: ImageSet, *, test: float, validation: float | Fold, seed: int
) -> tuple[ImageSet, ImageSet, ImageSet | None]:
    """Train, validation and test of a set without a protocol, no class in two of them.

    Where there are fewer than four classes none are kept for the test.

    Args:
        images: all pictures, labelled.
        test: the share of the classes to test on; 0 for none.
        validation: the share of the remaining classes to hold out, or a fold.
        seed: of the shuffle of the classes.
    """
    if not 0 <= test < 1:
        raise BadData(f"test={test}: a share of classes in [0, 1)")
    classes = len(images.class_names)
    if test == 0 or classes < _FEWEST_TO_TEST:
        return *with_validation(images, validation=validation, seed=seed), None
    shuffled = np.random.default_rng(seed).permutation(classes)
    count = min(max(round(test * classes), 1), classes - 1)
    rest = images.of_classes(shuffled[count:])
    train, held = with_validation(rest, validation=validation, seed=seed)
    return train, held, images.of_classes(shuffled[:count])


def split_notes(splits: Splits, *, test: float, validation: float | Fold) -> list[str]:
    """A sentence for each part that was asked for and could not be had, for run records.

    Args:
        splits: what was made.
        test: the share of the classes that was asked for; 0 for none.
        validation: the share or the fold.
    """
    notes = []
    classes = len(splits.train.class_names)
    if test and splits.test is None:
        notes.append(f"{classes} classes are too few to keep some for the test (4 are needed)")
    if validation and not len(splits.validation):
        pairs = int((splits.train.class_sizes() > 1).sum())
        notes.append(
            f"{classes} training classes, {pairs} with two pictures or more, are too few to hold "
            "some out for validation: the last model is kept"
        )
    return notes


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
