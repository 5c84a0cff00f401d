"""Images made small: JPEGs to look at, kept in memory up to a bound, and signatures to compare.

The signature of an image is the mean color of each cell of an 8 × 8 grid over it. Compression and
another size move a mean by a few of its 256 levels; another image moves at least one of them far:
near-duplicates are the same but for their size and compression, whatever a model thinks of them.
"""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial import KDTree

from cbml.data import UnreadableImage, read_image
from cbml.files import sha256
from cbml.gallery.images import GalleryImage

THUMBNAIL_SIZES = (96, 192, 384)
IMAGE_SIDE = 2048


def jpeg(image: Image.Image, side: int, *, quality: int = 85) -> bytes:
    """An RGB image as JPEG without any metadata, its longer side at most `side`."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    output = io.BytesIO()
    # From the pixels alone: profiles and comments of the file stay behind.
    small.info.clear()
    small.save(output, format="JPEG", quality=quality)
    return output.getvalue()


def file_jpeg(image: GalleryImage, side: int) -> bytes:
    """The file of an image as a small JPEG; raises UnreadableImage where it is not to be had.

    A file that was replaced since it was indexed is not shown: its vector is that of the old one.
    """
    path = Path(image.path)
    try:
        status = path.stat()
        touched = status.st_mtime_ns != image.modified
        if status.st_size != image.bytes or (touched and sha256(path) != image.sha256):
            raise UnreadableImage(path, "has changed since it was indexed")
    except OSError as error:
        raise UnreadableImage(path, f"cannot be opened ({error.strerror})") from None
    return jpeg(read_image(path), side)


class ByteCache:
    """The most recently used values, together at most so many bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._values: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The value of a key; `make` makes it, perhaps in several threads at once."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            if key not in self._values and len(value) <= self.most:
                self._values[key] = value
                self.size += len(value)
                while self.size > self.most:
                    self.size -= len(self._values.popitem(last=False)[1])
        return value


CELLS = 8
SIGNATURE_SIZE = CELLS * CELLS * 3
# JPEG at quality 60, or half the size, moves the cells of photographs by at most 8 levels.
TOLERANCE = 12

Signature = NDArray[np.uint8]


def signature_of(image: Image.Image) -> Signature:
    """The mean colors of the cells of an RGB image, (SIGNATURE_SIZE,)."""
    small = image.resize((CELLS, CELLS), Image.Resampling.BOX, reducing_gap=None)
    return np.asarray(small, dtype=np.uint8).reshape(SIGNATURE_SIZE)


def mark_near_duplicates(
    signatures: NDArray[np.uint8], first: Sequence[Signature] = ()
) -> NDArray[np.bool_]:
    """Whether each image resembles an earlier one that is not itself a near-duplicate, (N,).

    The signatures are in the order of preference; those of `first` come before all of them.
    """
    distinct = np.empty((len(first) + len(signatures), SIGNATURE_SIZE), dtype=np.int16)
    count = len(first)
    for index, signature in enumerate(first):
        distinct[index] = signature
    marked = np.zeros(len(signatures), dtype=np.bool_)
    for index, signature in enumerate(signatures):
        farthest = np.abs(distinct[:count] - signature).max(axis=1, initial=0)
        marked[index] = bool((farthest <= TOLERANCE).any())
        if not marked[index]:
            distinct[count] = signature
            count += 1
    return marked


def near_duplicate_groups(signatures: NDArray[np.uint8]) -> list[list[int]]:
    """Indices of images that resemble the first of their group; only groups of two or more.

    Signatures that differ by at most the tolerance everywhere have quarters whose mean colors do,
    too. A tree of those gives few candidates for each image, however many images there are.
    """
    half = CELLS // 2
    quarters = signatures.reshape(-1, 2, half, 2, half, 3).mean(axis=(2, 4)).reshape(-1, 12)
    tree = KDTree(quarters)
    grouped = np.zeros(len(signatures), dtype=np.bool_)
    groups: list[list[int]] = []
    for index in range(len(signatures)):
        if grouped[index]:
            continue
        found = tree.query_ball_point(quarters[index], TOLERANCE + 1e-6, p=np.inf)
        near = np.sort(np.asarray(found, dtype=np.int64))
        near = near[(near > index) & ~grouped[near]]
        difference = np.abs(signatures[near].astype(np.int16) - signatures[index])
        members = near[difference.max(axis=1, initial=0) <= TOLERANCE]
        if len(members):
            grouped[[index, *members]] = True
            groups.append([index, *members.tolist()])
    return groups
