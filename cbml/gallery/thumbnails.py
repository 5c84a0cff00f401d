"""Pictures made small, written anew as JPEG, the latest kept in memory up to a bound."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

from PIL import Image

from cbml.data.decode import read_picture
from cbml.gallery.pictures import Picture

__all__ = ["IMAGE_SIDE", "THUMBNAIL_SIZES", "ByteCache", "file_jpeg", "jpeg"]

THUMBNAIL_SIZES = (96, 192, 384)
IMAGE_SIDE = 2048


def jpeg(picture: Image.Image, side: int, *, quality: int = 85) -> bytes:
    """A picture as JPEG without any metadata.

    Args:
        picture: of mode RGB.
        side: the longer side at most.
        quality: of the compression.
    """
    small = picture.copy()
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    output = io.BytesIO()
    # From the pixels alone: profiles and comments of the file stay behind.
    small.info.clear()
    small.save(output, format="JPEG", quality=quality)
    return output.getvalue()


def file_jpeg(picture: Picture, side: int) -> bytes:
    """The file of a picture as a small JPEG; raises BadPicture where there is none to be had.

    Args:
        picture: of a gallery.
        side: the longer side at most.
    """
    return jpeg(read_picture(Path(picture.path)), side)


class ByteCache:
    """The most recently used values, together at most so many bytes.

    Args:
        most: bytes of all values.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._values: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The value of a key, made if it is not there.

        Args:
            key: what it is known by.
            make: makes it; may run in several threads at once.
        """
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
