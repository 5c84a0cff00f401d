"""How many classes and pictures make a batch, where nobody said so."""

import math

import numpy as np
from numpy.typing import NDArray

from cbml.training.recipe import CLASSES_PER_BATCH, PICTURES_PER_CLASS

__all__ = ["fitted_sizes"]


def fitted_sizes(
    sizes: NDArray[np.int64],
    *,
    processes: int = 1,
    classes: int | None = None,
    pictures: int | None = None,
) -> tuple[int, int]:
    """Classes in a batch and pictures of each: 15 and 8 where the set and the processes allow it.

    With fewer than 15 classes all of them are in every batch, each with so many pictures that the
    batch keeps its size, but not with more than half of the classes have.

    Args:
        sizes: pictures of each class. (C,)
        processes: that share each batch equally.
        classes: as the user wants it, whether it can be had or not; None to choose.
        pictures: the same.
    """
    chosen = min(CLASSES_PER_BATCH, len(sizes)) if classes is None else classes
    if pictures is not None:
        unit = _unit(processes, pictures)
        return (max(chosen // unit, 1) * unit if classes is None else chosen), pictures
    fitting = PICTURES_PER_CLASS
    if classes is None:
        room = CLASSES_PER_BATCH * PICTURES_PER_CLASS // chosen
        fitting = max(fitting, min(room, int(np.median(sizes))))
    unit = _unit(processes, chosen)
    return chosen, max(round(fitting / unit), 1) * unit


def _unit(processes: int, other: int) -> int:
    """What one of two sizes must be a multiple of, so that the processes can share the batch."""
    return processes // math.gcd(processes, other)
