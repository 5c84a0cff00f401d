"""Pixels of a picture by its number, and what happens when there are none to be had."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cbml.data.decode import read_picture
from cbml.data.transforms import resized_short_side
from cbml.errors import BadData
from cbml.files import replaced_file

__all__ = ["BadPictures", "FilePictures"]


class PictureSource(Protocol):
    """Anything that gives the pixels of picture `index`, its short side resized to a length."""

    def sized(self, index: int, length: int) -> Tensor:
        """(3, H, W) uint8; raises BadPicture where the picture cannot be read.

        Args:
            index: the number of the picture in its set.
            length: of the short side.
        """


class FilePictures:
    """Pictures decoded from their files each time they are asked for.

    Args:
        paths: the files, by number.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def sized(self, index: int, length: int) -> Tensor:
        """(3, H, W) uint8 pixels of a picture; raises BadPicture where it cannot be read.

        Args:
            index: the number of the picture.
            length: of the short side.
        """
        # A copy, because torch will not share memory that it must not write to.
        pixels = torch.from_numpy(np.array(read_picture(self.paths[index])))
        return resized_short_side(pixels.permute(2, 0, 1), length)


class BadPictures:
    """The pictures of one set that could not be read: counted, listed, and limited.

    Args:
        paths: the files of the set, by number.
        limit: the share of the set above which a run is not worth going on with; one bad picture
            is always let pass unless the limit is 0.
    """

    def __init__(self, paths: Sequence[Path], *, limit: float = 0.05) -> None:
        self.paths = paths
        self.limit = limit
        self.reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, index: int, reason: str) -> None:
        """Note one bad picture; raises BadData when there are too many.

        Args:
            index: the number of the picture.
            reason: why it cannot be read.
        """
        self.reasons[index] = reason
        if len(self) > max(self.limit * len(self.paths), 1 if self.limit else 0):
            raise BadData(
                f"{self.paths[index]}: {reason}; with it {len(self)} of {len(self.paths)} "
                f"pictures cannot be read, more than the share {self.limit} allowed: mend or "
                "remove them (cbml data check lists them), or raise the limit: --set bad_limit=0.5"
            )

    def write(self, path: Path) -> None:
        """Write `bad_images.csv`: path and reason of each bad picture, in the order of the set.

        Args:
            path: the file to create or replace.
        """
        with (
            replaced_file(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            rows = csv.writer(file)
            rows.writerow(["path", "reason"])
            for index, reason in sorted(self.reasons.items()):
                rows.writerow([str(self.paths[index]), reason])
