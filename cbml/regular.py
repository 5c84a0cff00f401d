"""Only regular files are opened, wherever a path leads.

Opening a named pipe waits for its other end for ever, opening a device may do anything, and a
socket or a link in a circle gives an error that tells nobody what lies there. Whatever this program
opens under a name that somebody else could have put there is opened here.
"""

import contextlib
import io
import os
import stat
from pathlib import Path
from typing import Literal, cast

__all__ = ["SpecialFile", "check_regular", "open_regular", "read_file", "read_text"]

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class SpecialFile(OSError):
    """A pipe, a device, a socket or a folder where a file should be."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}; move it away and try again"


def open_regular(path: Path, mode: Literal["rb", "wb", "ab", "a+b"] = "rb") -> io.BufferedRandom:
    """The file, opened without waiting; raises OSError for anything but a regular file.

    Args:
        path: A file, or a symbolic link to one.
        mode: As for `open`.
    """
    check_regular(path)  # before opening: a device may react to that
    return cast(io.BufferedRandom, open(path, mode, opener=_opened))


def read_file(path: Path) -> bytes:
    """The bytes of a regular file.

    Args:
        path: A file, or a symbolic link to one.
    """
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The text of a regular file in UTF-8.

    Args:
        path: A file, or a symbolic link to one.
        errors: What becomes of bytes that are no text, as for `bytes.decode`.
    """
    return read_file(path).decode("utf-8", errors)


def check_regular(path: Path) -> None:
    """Raise OSError where something other than a regular file lies; nothing may lie there.

    Args:
        path: A file that is about to be opened, perhaps by others.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_kind(path, os.stat(path).st_mode)


def _opened(name: str, flags: int) -> int:
    # Without waiting, and checked again: what lies there now may be another than a moment ago.
    descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        _check_kind(Path(name), os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
        raise SpecialFile(None, f"{kind}, not a regular file", str(path))
