"""Looking for pictures and lists on disk, in whatever folder above them the user named."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from cbml.data.archives import folder_of
from cbml.data.decode import SUFFIXES
from cbml.errors import BadData

__all__ = [
    "ClassFolders",
    "class_folders",
    "ignored_files",
    "locate",
    "locate_beside",
    "no_pictures",
    "opened",
    "packaged",
    "picture_folders",
    "read_rows",
    "simple",
    "unpacked_beside",
]

ClassFolders = dict[str, list[Path]]

_DEEPEST = 8
_LISTED = 5


def opened(root: Path | str) -> Path:
    """The folder that a user's `root` stands for; an archive is unpacked into the cache.

    Args:
        root: a folder or an archive.
    """
    return folder_of(Path(root).expanduser())


def packaged(name: str) -> str:
    """The text of a list that comes with the package.

    Args:
        name: of the file.
    """
    return (resources.files("cbml.data.catalogue") / name).read_text(encoding="utf-8")


def locate(root: Path, names: Sequence[str]) -> Path | None:
    """The first folder at `root`, or up to two levels below it, that holds all of the names.

    Args:
        root: where to begin.
        names: files or folders that must be there, such as "images.txt".
    """
    level = [root]
    for _ in range(3):
        for folder in level:
            if all((folder / name).exists() for name in names):
                return folder
        level = [below for folder in level for below in _folders(folder)]
        if len(level) > 300:  # class folders, not levels of an unpacked archive
            return None
    return None


def locate_beside(root: Path | str, name: str) -> Path | None:
    """The folder of an archive, if the list that belongs to it lies there; else None.

    Args:
        root: what the user named.
        name: of the list.
    """
    folder = Path(root).expanduser().parent
    return folder if Path(root).expanduser().is_file() and (folder / name).is_file() else None


def unpacked_beside(folder: Path, name: str, archives: Sequence[str]) -> Path:
    """The folder that holds `name`: this one, or what an archive in it was unpacked to.

    Args:
        folder: where the lists of the set are.
        name: the folder of pictures.
        archives: official names of the archive that holds it.
    """
    if not (folder / name).is_dir():
        for archive in archives:
            if (folder / archive).is_file():
                return opened(folder / archive)
    return folder


def class_folders(root: Path) -> ClassFolders:
    """Class name -> its pictures, sorted: a class is a folder that holds pictures itself.

    Classes of one name below several folders, such as `train` and `test`, become one.

    Args:
        root: where to begin.
    """
    found: ClassFolders = {}
    for folder, pictures in picture_folders(root):
        found.setdefault(folder.name, []).extend(pictures)
    return {name: sorted(paths) for name, paths in sorted(found.items())}


def read_rows(path: Path, columns: int) -> Iterator[list[str]]:
    """The lines of a list file, split at white space into so many columns.

    Args:
        path: the file.
        columns: how many; the last takes the rest of the line.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            words = line.split(maxsplit=columns - 1)
            if not words:
                continue
            if len(words) != columns:
                raise BadData(f"{path}: line {number} has {len(words)} columns, not {columns}")
            words[-1] = words[-1].strip()
            yield words


def simple(name: str) -> str:
    """A class name reduced to its letters and digits, as copies spell the rest in many ways.

    Args:
        name: of a folder or a list.
    """
    return re.sub(r"[\W_]+", "", name.casefold())


def picture_folders(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """The folders that hold pictures themselves, in order, each with its pictures, sorted.

    Args:
        folder: where to begin; names that begin with a dot are passed over.
    """
    for below, files in _files(folder):
        pictures = [path for path in files if path.suffix.lower() in SUFFIXES]
        if pictures:
            yield below, pictures


def ignored_files(folder: Path) -> list[Path]:
    """The files that `picture_folders` passes over for their suffix, such as .heic, in order.

    Args:
        folder: where to begin.
    """
    return [
        path for _, files in _files(folder) for path in files if path.suffix.lower() not in SUFFIXES
    ]


def no_pictures(folder: Path) -> BadData:
    """The error for a folder without pictures, with the kinds of file that it holds instead.

    Args:
        folder: where they were looked for.
    """
    kinds = Counter(path.suffix.lower() or "no suffix" for path in ignored_files(folder))
    held = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_LISTED))
    known = ", ".join(sorted(SUFFIXES))
    others = f" among its files ({held})" if held else ""
    return BadData(f"{folder}: no pictures found{others}; looked for {known}")


def _files(folder: Path, depth: int = 0) -> Iterator[tuple[Path, list[Path]]]:
    """Every folder, in order, with the files in it, sorted."""
    files: list[Path] = []
    below: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    (below if entry.is_dir() else files).append(folder / entry.name)
    except OSError as error:
        raise BadData(f"{folder}: cannot be listed ({error.strerror})") from None
    yield folder, sorted(files)
    if below and depth >= _DEEPEST:  # also where a link leads back to a folder above it
        raise BadData(f"{folder}: more than {_DEEPEST} folders deep; name the folder of the set")
    for path in sorted(below):
        yield from _files(path, depth + 1)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                folder / entry.name
                for entry in entries
                if entry.is_dir() and not entry.name.startswith(".")
            )
    except OSError as error:
        raise BadData(f"{folder}: cannot be listed ({error.strerror})") from None
