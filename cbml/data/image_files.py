"""Pixels of an image by its index, and the list of images that cannot be read."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cbml.data.decode import UnreadableImage, read_bytes, read_image
from cbml.data.transforms import resized_short_side
from cbml.errors import BadData
from cbml.files import write_csv

__all__ = [
    "FileImages",
    "ImageSource",
    "UnreadableImages",
    "combined_digest",
    "file_digest",
]


class ImageSource(Protocol):
    """Anything that gives the pixels of image `index`, its short side resized to a length."""

    def sized(self, index: int, length: int) -> Tensor:
        """(3, H, W) uint8; raises UnreadableImage where the image cannot be read.

        Args:
            index: Index of the image in its dataset.
            length: Length of the short side.
        """


class FileImages:
    """Images decoded from their files each time they are needed.

    Args:
        paths: One file per image.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def sized(self, index: int, length: int) -> Tensor:
        """(3, H, W) uint8 pixels of an image; raises UnreadableImage where it cannot be read.

        Args:
            index: Index of the image.
            length: Length of the short side.
        """
        # A copy, because torch will not share memory that it must not write to.
        pixels = torch.from_numpy(np.array(read_image(self.paths[index])))
        return resized_short_side(pixels.permute(2, 0, 1), length)

    def digest(self) -> str:
        """A digest of the contents of all files, in their order."""
        return combined_digest(map(file_digest, self.paths))


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes; "unreadable" where they cannot be had."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except UnreadableImage:
        return "unreadable"


def combined_digest(digests: Iterable[str]) -> str:
    """One digest for the files of a dataset, from the digest of each."""
    total = hashlib.sha256()
    for digest in digests:
        total.update(digest.encode())
    return total.hexdigest()[:32]


class UnreadableImages:
    """The images of a dataset that could not be read: counted, listed, and limited.

    Args:
        paths: The files of the dataset.
        limit: The share of the dataset above which a run stops; one bad image is always accepted
            unless the limit is 0.
    """

    def __init__(self, paths: Sequence[Path], *, limit: float = 0.05) -> None:
        self.paths = paths
        self.limit = limit
        self.reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, index: int, reason: str) -> None:
        """Note one bad image; raises BadData when there are too many.

        Args:
            index: Index of the image.
            reason: Why it cannot be read.
        """
        self.reasons[index] = reason
        if len(self) > max(self.limit * len(self.paths), 1 if self.limit else 0):
            raise BadData(
                f"{self.paths[index]}: {reason}; with it {len(self)} of {len(self.paths)} "
                f"images cannot be read, more than the share {self.limit} allowed: mend or "
                "remove them (cbml data check lists them), or raise the limit: --set bad_limit=0.5"
            )

    def write(self, path: Path) -> None:
        """Write `bad_images.csv`: path and reason of each bad image, in the order of the dataset.

        Args:
            path: The file to create or replace.
        """
        bad = [(str(self.paths[index]), why) for index, why in sorted(self.reasons.items())]
        write_csv(path, ["path", "reason"], bad)
