"""A file that claims to be a picture -> RGB pixels as people see them, or a named refusal.

What is refused is refused before it costs memory: only formats of the list are tried, and the
size that the header announces is compared with a limit of ours before a pixel is decoded.
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from cbml.errors import BadData

__all__ = ["FORMATS", "PIXEL_LIMIT", "SUFFIXES", "BadPicture", "read_picture"]

# Pillow knows about forty formats; these six are what collections of pictures consist of.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
)
PIXEL_LIMIT = 64_000_000  # 192 MB as RGB; the largest common camera sensors have 50-61 million
BYTE_LIMIT = 512 * 1024 * 1024

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 0x0112


class BadPicture(BadData):
    """One picture that cannot be read; `path` names it and `reason` says why."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = Path(path)
        self.reason = reason


def read_picture(source: Path | bytes, *, pixel_limit: int = PIXEL_LIMIT) -> Image.Image:
    """The first frame of a picture in mode RGB, upright, transparent parts on white.

    Raises BadPicture, and nothing else, for whatever cannot be shown.

    Args:
        source: a file, or the bytes of one.
        pixel_limit: width times height above which a picture is refused before decoding.
    """
    name = source if isinstance(source, Path) else "picture"
    try:
        content = _content(source)
        if not content:
            raise BadPicture(name, "empty file")
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            if width * height > pixel_limit:
                raise BadPicture(name, f"{width} x {height} is above {pixel_limit} pixels")
            image.load()
            turn = _turn(image)  # after loading: the reader of TIFF turns the picture itself
            upright = _in_colour(image)
        return upright if turn is None else upright.transpose(turn)
    except BadPicture as refusal:
        raise BadPicture(name, refusal.reason) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadPicture(name, f"above {pixel_limit} pixels") from None
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise BadPicture(name, f"not a picture of a known format ({known})") from None
    except MemoryError:
        raise BadPicture(name, "needs more memory than there is") from None
    except Exception as error:  # decoders fed with damaged bytes raise nearly anything
        raise BadPicture(name, f"damaged ({' '.join(str(error).split())[:120]})") from None


def _content(source: Path | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        with source.open("rb") as file:
            content = file.read(BYTE_LIMIT + 1)
    except OSError as error:
        raise BadPicture(source, f"cannot be opened ({error.strerror})") from None
    if len(content) > BYTE_LIMIT:
        raise BadPicture(source, f"larger than {BYTE_LIMIT >> 20} MB")
    return content


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged note beside sound pixels: the picture is shown as stored
        return None


def _in_colour(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _from_wide_grey(image)
    if image.mode == "F":
        raise BadPicture("", "floating-point pixels have no agreed white; save it with 8 bits")
    transparent = image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info
    if not transparent:
        return image if image.mode == "RGB" else image.convert("RGB")
    layered = image.convert("RGBA")
    white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, layered).convert("RGB")


def _from_wide_grey(image: Image.Image) -> Image.Image:
    """16 bits to 8 by division; `convert` would clip, which turns a ramp almost white."""
    values = np.asarray(image).astype(np.int64)
    if values.size and (values.min() < 0 or values.max() > 0xFFFF):
        raise BadPicture("", "32-bit grey has no agreed white; save it with 8 or 16 bits")
    grey = ((values + 128) // 257).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")
