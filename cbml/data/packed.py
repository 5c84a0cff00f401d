"""Images decoded and resized once, kept as plain pixels in one memory-mapped file.

A packed folder holds `pixels.u8`, the images one after another as height x width x 3 bytes, and a
saved table of their sizes, offsets and check sums under a manifest, which is the commit point.
While it is being made, a journal has one line for each finished image; after a kill at any moment
the lines whose pixels are sound are kept and the work resumes behind them. A lock lets one process
work while the others wait for the result. Check sums are compared when an image is first used, so
that opening takes no longer for a million images than for a hundred.
"""

import contextlib
import hashlib
import json
import math
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.data.decode import (
    NEEDS_HEIC,
    UnreadableImage,
    combined_digest,
    prefetch,
    read_bytes,
    read_image,
    reads_heic,
)
from cbml.data.downloads import cache_folder
from cbml.data.image_dataset import ImageDataset
from cbml.data.transforms import resized_short_side
from cbml.data.transforms import short_side as side_for
from cbml.errors import BadData, DamagedFile
from cbml.files import load_folder, locked, save_folder
from cbml.regular import open_regular

KIND = "cbml packed images 2"
PIXELS = "pixels.u8"
JOURNAL = "journal.jsonl"
# Bytes of a mapped file that were read count as the process's memory until they are let go. After
# so many they are; what is needed again mostly comes from the system's cache.
_RESIDENT = 2**24

Progress = Callable[[int, int], None]
# height, width, check sum of the pixels, why it is bad, SHA-256 of the file it came from
Entry = tuple[int, int, int, str, str]


class PackedImages:
    """Pixels of images from a folder written by `pack`.

    Args:
        folder: The folder that `pack` made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            parts, metadata = load_folder(folder, KIND)
        except DamagedFile as error:  # whose remedies are for what cannot be made again
            raise _damaged(folder, str(error).partition(";")[0]) from None
        table: NDArray[np.int64] = np.load(parts["table.npy"])  # (N, 4): place, H, W, check sum
        self.short_side = int(metadata["short_side"])
        self.reasons = {int(index): str(reason) for index, reason in metadata["bad"].items()}
        self._digest = str(metadata["digest"])
        self._table = table
        self._checked = np.zeros(len(table), dtype=np.bool_)
        path = folder / PIXELS
        if not path.is_file() or path.stat().st_size != metadata["bytes"]:
            raise _damaged(folder, f"{path}: not the size its manifest says")
        self._map: mmap.mmap | None = None
        self._pixels, self._read = torch.empty(0, dtype=torch.uint8), 0
        if metadata["bytes"]:
            with open_regular(path) as file:
                # Copy on write: torch wants memory it may write to, the file must stay as it is.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._pixels = torch.frombuffer(self._map, dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._table)

    def digest(self) -> str:
        """A digest of the contents of the image files, in their order, made when they were packed.

        It says the same as `FileImages.digest` without reading them again: files whose path, size
        or time of change differs are packed again.
        """
        return self._digest

    def sized(self, index: int, length: int) -> Tensor:
        """(3, H, W) uint8 pixels of an image; raises UnreadableImage where it could not be read.

        Args:
            index: Index of the image.
            length: Length of the short side; not above the length that was packed.
        """
        if length > self.short_side:
            raise BadData(
                f"{self.folder}: packed with a short side of {self.short_side}, {length} is "
                "needed; pack again for the larger crop"
            )
        place, height, width, expected = self._table[index].tolist()
        if not height:
            raise UnreadableImage(f"image {index} of {self.folder}", self.reasons[index])
        stored = self._stored(place, height * width * 3)
        if not self._checked[index]:
            if zlib.crc32(stored.numpy().data) != expected:
                raise _damaged(self.folder, f"{self.folder / PIXELS}: image {index} is damaged")
            self._checked[index] = True
        return resized_short_side(stored.view(height, width, 3).permute(2, 0, 1), length)

    def _stored(self, place: int, size: int) -> Tensor:
        """A view of the mapped file, of which little more than `_RESIDENT` stays in memory."""
        self._read += size
        if self._map is not None and self._read > _RESIDENT and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)  # views stay good: they read it again
            self._read = size
        return self._pixels[place : place + size]


@dataclass(frozen=True)
class PackedDataset:
    """A dataset whose images are decoded already, without those that cannot be read.

    Args:
        images: The readable images.
        packed: The pixels of all images.
        indices: The readable images within `packed`. (N,)
        bad: Path and reason of each image that cannot be read.
    """

    images: ImageDataset
    packed: PackedImages
    indices: tuple[int, ...]
    bad: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls, images: ImageDataset, crop: int, progress: Progress | None = None
    ) -> "PackedDataset":
        """Pack a dataset in the cache folder, or find it there.

        Args:
            images: The images to pack.
            crop: Side of the square that the network sees.
            progress: Called with images done and images in all.
        """
        cache = cache_folder() / "packed"
        packed = pack(images.paths, cache, short_side=side_for(crop), progress=progress)
        indices = tuple(index for index in range(len(images)) if index not in packed.reasons)
        bad = tuple(
            (str(images.paths[index]), why) for index, why in sorted(packed.reasons.items())
        )
        kept = images if len(indices) == len(images) else images.subset(indices)
        return cls(kept, packed, indices, bad)

    @property
    def digest(self) -> str:
        """A digest of the contents of all image files, in their order."""
        return self.packed.digest()


def pack(
    paths: Sequence[Path],
    cache: Path,
    *,
    short_side: int = 256,
    workers: int = 2,
    progress: Progress | None = None,
) -> PackedImages:
    """Decode and resize each image once; what an earlier or killed call did is not done again.

    Images whose short side is shorter are stored as they are and enlarged when read. Images that
    differ in any path, size or time of change get a folder of their own below `cache`.

    Args:
        paths: The files to pack.
        cache: The folder to keep packed images in.
        short_side: The length to which the short side is resized; 256 serves the paper's 227 crop.
        workers: Number of images decoded at once; 0 uses no threads.
        progress: Called with images done and images in all.
    """
    folder = cache / _fingerprint(paths, short_side)
    with locked(folder, wait=math.inf):
        if (folder / "manifest.json").exists() and _readable_now(PackedImages(folder)):
            for file in folder.glob("[!.]*"):
                file.unlink()
        if not (folder / "manifest.json").exists():
            _build(paths, folder, short_side, workers, progress)
    return PackedImages(folder)


def _damaged(folder: Path, reason: str) -> DamagedFile:
    return DamagedFile(f"{reason}; delete {folder} and it will be made again")


def _readable_now(packed: PackedImages) -> bool:
    """Whether an image was unreadable only for want of an extra that is installed by now."""
    needed = any(reason.startswith(NEEDS_HEIC) for reason in packed.reasons.values())
    return needed and reads_heic()


def _fingerprint(paths: Sequence[Path], short_side: int) -> str:
    digest = hashlib.sha256(f"{KIND} {short_side}".encode())
    for path in paths:
        try:
            status = os.stat(path)
            identity = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            identity = "missing"
        digest.update(os.fsencode(os.path.abspath(path)) + b"\0" + identity.encode() + b"\0")
    return digest.hexdigest()[:24]


def _build(
    paths: Sequence[Path],
    folder: Path,
    short_side: int,
    workers: int,
    progress: Progress | None,
) -> None:
    entries = _finished(folder, len(paths))
    decoded = prefetch(
        lambda path: _one(path, short_side),
        paths[len(entries) :],
        workers=workers,
        ahead=4 * workers,
    )
    with (
        contextlib.closing(decoded),
        open_regular(folder / PIXELS, "ab") as pixels,
        open_regular(folder / JOURNAL, "ab") as journal,
    ):
        for content, entry in decoded:
            pixels.write(content)
            pixels.flush()
            journal.write(json.dumps(entry).encode() + b"\n")
            journal.flush()
            entries.append(entry)
            if progress is not None:
                progress(len(entries), len(paths))
        os.fsync(pixels.fileno())
    _publish(folder, entries, short_side)


def _publish(folder: Path, entries: list[Entry], short_side: int) -> None:
    sizes = np.array([entry[:3] for entry in entries], dtype=np.int64).reshape(-1, 3)
    lengths = sizes[:, 0] * sizes[:, 1] * 3
    table = np.concatenate([(np.cumsum(lengths) - lengths)[:, None], sizes], axis=1)
    metadata = {
        "short_side": short_side,
        "bytes": int(lengths.sum()),
        "digest": combined_digest(entry[4] for entry in entries),
        "bad": {str(index): entry[3] for index, entry in enumerate(entries) if entry[3]},
    }
    parts = {"table.npy": lambda path: np.save(path, table)}
    save_folder(folder, KIND, parts, metadata)
    (folder / JOURNAL).unlink()


def _one(path: Path, short_side: int) -> tuple[bytes, Entry]:
    digest = "unreadable"
    try:
        file = read_bytes(path)
        digest = hashlib.sha256(file).hexdigest()
        pixels = torch.from_numpy(np.array(read_image(file))).permute(2, 0, 1)
    except UnreadableImage as refusal:
        return b"", (0, 0, 0, refusal.reason, digest)
    resized = resized_short_side(pixels, min(short_side, *pixels.shape[1:]))
    content = resized.permute(1, 2, 0).contiguous().numpy().tobytes()
    return content, (*resized.shape[1:], zlib.crc32(content), "", digest)


def _finished(folder: Path, count: int) -> list[Entry]:
    """The entries whose pixels are sound; both files are cut back to them."""
    entries: list[Entry] = []
    kept = 0
    place = 0
    with (
        open_regular(folder / PIXELS, "a+b") as pixels,
        open_regular(folder / JOURNAL, "a+b") as journal,
    ):
        pixels.seek(0)
        journal.seek(0)
        for line in journal:
            entry = _entry(line)
            if entry is None or len(entries) == count or not _sound(pixels, entry):
                break
            entries.append(entry)
            kept += len(line)
            place += entry[0] * entry[1] * 3
        pixels.truncate(place)
        journal.truncate(kept)
    return entries


def _entry(line: bytes) -> Entry | None:
    if not line.endswith(b"\n"):
        return None
    try:
        height, width, checksum, reason, digest = json.loads(line)
        return int(height), int(width), int(checksum), str(reason), str(digest)
    except (ValueError, TypeError):
        return None


def _sound(pixels: BinaryIO, entry: Entry) -> bool:
    height, width, expected, reason, _ = entry
    content = pixels.read(height * width * 3)
    return bool(reason) or zlib.crc32(content) == expected
