"""Archives of images, unpacked so that nothing leaves its folder and nothing swells.

Members are checked here and written with our own calls: `tarfile.data_filter` is missing from some
Pythons we support, and neither `tarfile` nor `zipfile` limits how much comes out.
"""

import bz2
import contextlib
import errno
import gzip
import hashlib
import lzma
import math
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from cbml.data.downloads import cache_folder
from cbml.errors import BadData
from cbml.files import locked
from cbml.regular import open_regular

_SUFFIXES = (".tgz", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip")
_CHUNK = 1 << 20
_HEADER_LIMIT = 4 << 20  # longest single read that an honest header of a tar member needs
_DIRECTORY_LIMIT = 256 << 20  # zip keeps its list of members in one piece, read at once


@dataclass(frozen=True)
class Limits:
    """How much may come out of an archive.

    Args:
        entries: Files and folders; the largest set of the paper has 120,053 images.
        ratio: Bytes out for each byte in, beyond the first 64 MB; images hardly compress.
    """

    entries: int = 500_000
    total_bytes: int = 400 * 1024**3
    ratio: int = 100


class _Meter:
    """Bytes that went by, stopped at the limits."""

    def __init__(self, archive: Path, limits: Limits) -> None:
        self.archive = archive
        self.limits = limits
        self.bytes = 0
        self.entries = 0
        self._most = min(limits.total_bytes, (64 << 20) + limits.ratio * archive.stat().st_size)

    def add(self, count: int) -> None:
        self.bytes += count
        if self.bytes > self._most:
            raise BadData(
                f"{self.archive}: unpacks to more than {self._most:,} bytes; not unpacked"
            )

    def entry(self) -> None:
        self.entries += 1
        if self.entries > self.limits.entries:
            raise BadData(f"{self.archive}: more than {self.limits.entries:,} entries")


def folder_of(root: Path) -> Path:
    """The folder of a set: `root` itself, or the cache folder into which its archive was unpacked.

    Args:
        root: A folder, or an archive (.tgz, .tar, .tar.gz, .tar.bz2, .tar.xz, .zip).
    """
    if os.path.isdir(root):
        return root
    if not os.path.exists(root):
        raise BadData(f"{str(root)[:200]}: no such folder or archive")
    if not root.name.lower().endswith(_SUFFIXES) or not os.path.isfile(root):
        raise BadData(f"{root}: neither a folder nor an archive ({', '.join(_SUFFIXES)})")
    status = root.stat()
    identity = f"{root.resolve()} {status.st_size} {status.st_mtime_ns}"
    key = hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]
    target = cache_folder() / "archives" / f"{root.name.split('.')[0]}-{key}"
    with locked(target.parent, name=f"{target.name}.lock", wait=math.inf):
        if not target.exists():
            extract(root, target)
    return target


def extract(archive: Path, target: Path, *, limits: Limits | None = None) -> None:
    """Unpack an archive into a new folder, wholly or not at all.

    Refuses links, devices, absolute names, names that lead out of the folder, and more than
    `limits` allow.

    Args:
        archive: A tar file, compressed or not, or a zip file.
        limits: How much may come out; the defaults when None.
    """
    meter = _Meter(archive, limits or Limits())
    scratch = target.with_name(f"{target.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)  # of a killed process
    scratch.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, scratch, meter)
        else:
            _unpack_tar(archive, scratch, meter)
        os.replace(scratch, target)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise BadData(f"{archive}: not an intact archive ({error}); download it again") from None
    except (NotImplementedError, RuntimeError, ValueError, gzip.BadGzipFile) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(f"{archive}: cannot be unpacked ({error})") from None
    except OSError as error:
        # Of the disk, unless the reader of bz2 (no number) or of zip (a place before the start)
        # complains of the archive.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise BadData(f"{archive}: not an intact archive ({error}); download it again") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unpack_tar(archive: Path, folder: Path, meter: _Meter) -> None:
    with _decompressed(archive) as stream:
        metered = _Metered(stream, meter)
        with tarfile.open(fileobj=metered, mode="r:") as tar:  # type: ignore[call-overload]
            _unpack_members(archive, tar, folder, meter)
        # `tarfile` takes a damaged header for the end, and checks no sums behind the last member.
        if metered.last != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("damaged or cut off before its end")
        while metered.read(_CHUNK):
            pass


def _unpack_members(archive: Path, tar: tarfile.TarFile, folder: Path, meter: _Meter) -> None:
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # it would keep every member ever seen
        meter.entry()
        place = _place(archive, folder, member.name)
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
        elif member.isreg() and not member.issparse():
            source = tar.extractfile(member)
            if source is not None:
                _write(archive, source, place, None)  # counted as it is read
        else:
            raise BadData(f"{archive}: {member.name!r} is a link or a device; not unpacked")


def _unpack_zip(archive: Path, folder: Path, meter: _Meter) -> None:
    _check_directory(archive)
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        if len(members) > meter.limits.entries:  # known before anything is written
            raise BadData(f"{archive}: more than {meter.limits.entries:,} entries; not unpacked")
        for member in members:
            place = _place(archive, folder, member.filename)
            mode = member.external_attr >> 16
            if member.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise BadData(f"{archive}: {member.filename!r} is a link or a device; not unpacked")
            elif member.flag_bits & 1:
                raise BadData(f"{archive}: {member.filename!r} is encrypted; decrypt it first")
            else:
                with opened.open(member) as source:
                    _write(archive, source, place, meter)


def _place(archive: Path, folder: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    wrong = (
        not parts
        or name.startswith("/")
        or ".." in parts
        or any(character in name for character in "\\\0")
        or parts[0].endswith(":")
        or len(parts) > 32
        or max(len(os.fsencode(part)) for part in parts) > 255
    )
    if wrong and PurePosixPath(name) != PurePosixPath("."):
        raise BadData(f"{archive}: the name {name[:100]!r} leads out of its folder; not unpacked")
    return folder.joinpath(*parts)


def _write(archive: Path, source: IO[bytes], place: Path, meter: _Meter | None) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            while chunk := source.read(_CHUNK):
                if meter is not None:
                    meter.add(len(chunk))
                file.write(chunk)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise BadData(f"{archive}: two entries have the name {place.name!r}") from None


@contextlib.contextmanager
def _decompressed(archive: Path) -> Iterator[IO[bytes]]:
    with open_regular(archive) as file:
        magic = file.read(6)
        file.seek(0)
        if magic.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=file) as stream:
                yield stream  # type: ignore[misc]
        elif magic.startswith(b"BZh"):
            with bz2.BZ2File(file) as stream:
                yield stream
        elif magic == b"\xfd7zXZ\0":
            with lzma.LZMAFile(file) as stream:
                yield stream
        else:
            yield file


class _Metered:
    """A stream for `tarfile` that counts, only goes forward, and refuses giant header reads."""

    def __init__(self, stream: IO[bytes], meter: _Meter) -> None:
        self._stream = stream
        self._meter = meter
        self._place = 0
        self.last = b""  # what the last read gave

    def read(self, size: int) -> bytes:
        if size > _HEADER_LIMIT:
            raise BadData(f"{self._meter.archive}: a header of {size:,} bytes; not unpacked")
        content = self._stream.read(size)
        self._place += len(content)
        self._meter.add(len(content))
        self.last = content
        return content

    def tell(self) -> int:
        return self._place

    def seek(self, place: int) -> None:
        if place < self._place:
            raise tarfile.ReadError("entries out of order")
        while self._place < place:
            if not self.read(min(_CHUNK, place - self._place)):
                return


def _check_directory(archive: Path) -> None:
    """Refuse a zip whose list of members alone would fill the memory."""
    with open_regular(archive) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 65_557))
        tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end >= 0 and len(tail) >= end + 22:
        length = struct.unpack_from("<I", tail, end + 12)[0]
        wide = tail.rfind(b"PK\x06\x06", 0, end)
        if length == 0xFFFFFFFF and wide >= 0 and len(tail) >= wide + 56:
            length = struct.unpack_from("<Q", tail, wide + 40)[0]
        if length > _DIRECTORY_LIMIT:
            raise BadData(f"{archive}: a list of members of {length:,} bytes; not unpacked")
