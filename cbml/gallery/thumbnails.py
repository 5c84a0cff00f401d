"""Images made small and encoded as JPEG, the latest kept in memory up to a bound."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

from PIL import Image

from cbml.data import UnreadableImage, read_image
from cbml.files import sha256
from cbml.gallery.images import GalleryImage

__all__ = ["IMAGE_SIDE", "THUMBNAIL_SIZES", "ByteCache", "file_jpeg", "jpeg"]

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
