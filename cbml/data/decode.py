"""A file that claims to be an image -> RGB pixels as people see them, or a named refusal.

What is refused is refused before it costs memory or time: only regular files are opened, only
formats of the list are tried, and the size that the header announces is compared with a limit of
ours before a pixel is decoded.
"""

import functools
import hashlib
import io
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from cbml.data.transforms import resized_short_side
from cbml.errors import BadData
from cbml.files import write_csv
from cbml.program import command, installation
from cbml.regular import open_regular

# Pillow knows about forty formats; these six are what collections of images consist of. HEIC, the
# format of many phones, comes with an extra.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
NEEDS_HEIC = "HEIC needs an extra"
_HEIF_SUFFIXES = {".heic", ".heif"}
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
    | _HEIF_SUFFIXES
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

Item = TypeVar("Item")
Result = TypeVar("Result")


class UnreadableImage(BadData):
    """One image that cannot be read; `path` names it and `reason` says why."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = Path(path)
        self.reason = reason


def read_bytes(path: Path) -> bytes:
    """The bytes of an image file; raises UnreadableImage if it is not a file of sensible size."""
    try:
        with open_regular(path) as file:
            content = file.read(BYTE_LIMIT + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableImage(path, f"cannot be opened ({reason})") from None
    if len(content) > BYTE_LIMIT:
        raise UnreadableImage(path, f"larger than {BYTE_LIMIT >> 20} MB")
    return content


def read_image(source: Path | str | bytes, *, pixel_limit: int = PIXEL_LIMIT) -> Image.Image:
    """The first frame of an image in mode RGB, upright, transparent parts on white.

    Raises UnreadableImage, and nothing else, for whatever cannot be shown.

    Args:
        source: A file, or the bytes of one.
        pixel_limit: Width times height above which an image is refused before decoding.
    """
    source = Path(source) if isinstance(source, str) else source
    name = source if isinstance(source, Path) else "image"
    try:
        content = read_bytes(source) if isinstance(source, Path) else source
        if not content:
            raise UnreadableImage(name, "empty file")
        with Image.open(io.BytesIO(content), formats=_formats(content)) as image:
            width, height = image.size
            if width * height > pixel_limit:
                raise UnreadableImage(name, f"{width} x {height} is above {pixel_limit} pixels")
            image.load()
            turn = _turn(image)  # after loading: the reader of TIFF turns the image itself
            upright = _in_color(image)
        return upright if turn is None else upright.transpose(turn)
    except UnreadableImage as refusal:
        raise UnreadableImage(name, refusal.reason) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UnreadableImage(name, f"above {pixel_limit} pixels") from None
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise UnreadableImage(name, f"not an image of a known format ({known})") from None
    except MemoryError:
        raise UnreadableImage(name, "needs more memory than is available") from None
    except Exception as error:  # decoders fed with damaged bytes raise nearly anything
        raise UnreadableImage(name, f"damaged ({' '.join(str(error).split())[:120]})") from None


def prefetch(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int, ahead: int
) -> Generator[Result, None, None]:
    """The result of each item, in the order of the items, with a few computed ahead by threads.

    Leaving early, also by an interruption, waits only for the items that threads are working on.

    Args:
        work: What to do with an item; must be safe to run in several threads.
        items: Any number of them; taken as the work proceeds.
        workers: Threads; 0 computes each result when it is asked for.
        ahead: Number of results that may be waiting or in work at once.
    """
    if not workers:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="cbml-prefetch")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _formats(content: bytes) -> tuple[str, ...]:
    if content[4:8] != b"ftyp" or content[8:12] not in _HEIF_BRANDS:
        return FORMATS
    if not reads_heic():
        raise UnreadableImage("", f"{NEEDS_HEIC}: run  {installation('cbml[heic]')}")
    return ("HEIF",)


@functools.cache
def reads_heic() -> bool:
    """Whether Pillow can read HEIC from now on."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged note beside sound pixels: the image is shown as stored
        return None


def _in_color(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _from_wide_gray(image)
    if image.mode == "F":
        raise UnreadableImage(
            "", "floating-point pixels have no standard white level; save it with 8 bits"
        )
    transparent = image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info
    if not transparent:
        return image if image.mode == "RGB" else image.convert("RGB")
    layered = image.convert("RGBA")
    white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, layered).convert("RGB")


def _from_wide_gray(image: Image.Image) -> Image.Image:
    """16 bits to 8 by division; `convert` would clip, which turns a ramp almost white."""
    values = np.asarray(image).astype(np.int64)
    if values.size and (values.min() < 0 or values.max() > 0xFFFF):
        raise UnreadableImage(
            "", "32-bit gray has no standard white level; save it with 8 or 16 bits"
        )
    gray = ((values + 128) // 257).astype(np.uint8)
    return Image.fromarray(gray).convert("RGB")


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
        self.add_all({index: reason})

    def add_all(self, reasons: Mapping[int, str]) -> None:
        """Note bad images, index -> reason; raises BadData when there are too many.

        Args:
            reasons: Why each of them cannot be read.
        """
        self.reasons.update(reasons)
        if len(self) > max(self.limit * len(self.paths), 1 if self.limit else 0):
            index, reason = list(self.reasons.items())[-1]
            remedy = f"repair or remove them ({command('data', 'check')} lists them)"
            if 2 * len(self) <= len(self.paths):
                remedy += ", or raise the limit: --set bad_limit=0.5"
            raise BadData(
                f"{len(self)} of {len(self.paths)} images cannot be read, more than the share "
                f"{self.limit} allowed; the last is {self.paths[index]}: {reason}; {remedy}"
            )

    def write(self, path: Path) -> None:
        """Write `bad_images.csv`: path and reason of each bad image, in the order of the dataset.

        Args:
            path: The file to create or replace.
        """
        bad = [(str(self.paths[index]), why) for index, why in sorted(self.reasons.items())]
        write_csv(path, ["path", "reason"], bad)
