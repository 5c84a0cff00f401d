"""Which pictures look the same but for their size and compression, whatever a model thinks of them.

The look of a picture is the mean colour of each cell of an 8 × 8 grid over it. Compression and
another size move a mean by a few of its 256 levels; another picture moves at least one of them far.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["LOOK", "Look", "look_of", "repeated"]

CELLS = 8
LOOK = CELLS * CELLS * 3
# JPEG at quality 60, or half the size, moves the cells of photographs by at most 8 levels.
TOLERANCE = 12

Look = NDArray[np.uint8]


def look_of(picture: Image.Image) -> Look:
    """The mean colours of a picture's cells, (LOOK,).

    Args:
        picture: of mode RGB.
    """
    small = picture.resize((CELLS, CELLS), Image.Resampling.BOX, reducing_gap=None)
    return np.asarray(small, dtype=np.uint8).reshape(LOOK)


def repeated(looks: NDArray[np.uint8], first: Sequence[Look] = ()) -> NDArray[np.bool_]:
    """Whether each picture looks like an earlier one that was not itself a repetition, (N,).

    Args:
        looks: in the order of preference. (N, LOOK)
        first: looks that come before all of them.
    """
    distinct = np.empty((len(first) + len(looks), LOOK), dtype=np.int16)
    count = len(first)
    for place, look in enumerate(first):
        distinct[place] = look
    answer = np.zeros(len(looks), dtype=np.bool_)
    for place, look in enumerate(looks):
        farthest = np.abs(distinct[:count] - look).max(axis=1, initial=0)
        answer[place] = bool((farthest <= TOLERANCE).any())
        if not answer[place]:
            distinct[count] = look
            count += 1
    return answer
