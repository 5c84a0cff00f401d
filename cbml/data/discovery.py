"""Images, lists and copies on disk, in whatever folder above them the user named."""

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np

from cbml.data.archives import folder_of
from cbml.data.decode import SUFFIXES
from cbml.data.image_dataset import ROLES, ImageDataset
from cbml.errors import BadData
from cbml.program import command
from cbml.regular import open_regular

ClassFolders = dict[str, list[Path]]

_DEEPEST = 8
_LISTED = 5


@dataclass
class Found:
    """What a layout on disk holds: for each image its file, its class and its split.

    `missing` is what the layout names but the disk does not hold, `extra` what the disk holds but
    the protocol does not know, `short` the number of images that each class lacks.
    """

    layout: str
    root: Path
    paths: list[Path] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    short: dict[str, int] = field(default_factory=dict)
    _present: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False)

    def add(self, path: Path, name: str, split: str) -> None:
        """Add an image that a list names, or note that its file is missing."""
        # One listing of a folder answers for all its files; asking for each takes far longer.
        folder = os.path.dirname(path)
        if folder not in self._present:
            self._present[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if path.name not in self._present[folder]:
            self.missing.append(os.path.relpath(path, self.root))
            self.short[name] = self.short.get(name, 0) + 1
            return
        self.add_all([path], name, split)

    def add_all(self, paths: Iterable[Path], name: str, split: str) -> None:
        """Add images of one class that were found on disk."""
        for path in paths:
            self.paths.append(path)
            self.classes.append(name)
            self.splits.append(split)

    def images(self, splits: Sequence[str]) -> ImageDataset:
        """The images of some splits, their classes in the order of appearance.

        Query and gallery together keep their roles.
        """
        indices = [index for index, name in enumerate(self.splits) if name in splits]
        codes: dict[str, int] = {}
        labels = [codes.setdefault(self.classes[index], len(codes)) for index in indices]
        roles = tuple(self.splits[index] for index in indices) if splits == ROLES else None
        paths = tuple(self.paths[index] for index in indices)
        return ImageDataset(paths, np.array(labels, dtype=np.int64), tuple(codes), roles)

    def class_counts(self) -> dict[str, list[int]]:
        """Class -> images that are there and images that should be, where some are missing."""
        here = dict.fromkeys(self.short, 0)
        for name in self.classes:
            if name in here:
                here[name] += 1
        return {name: [here[name], here[name] + lacking] for name, lacking in self.short.items()}


def open_source(root: Path | str) -> Path:
    """The folder that a user's `root` stands for; an archive is unpacked into the cache.

    Args:
        root: A folder or an archive.
    """
    return folder_of(Path(root).expanduser())


def packaged_text(name: str) -> str:
    """The text of a list that comes with the package."""
    return (resources.files("cbml.data.catalog") / name).read_text(encoding="utf-8")


def locate(root: Path, names: Sequence[str]) -> Path | None:
    """The first folder at `root`, or up to two levels below it, that holds all of the names."""
    level = [root]
    for _ in range(3):
        for folder in level:
            if all(os.path.exists(folder / name) for name in names):
                return folder
        level = [below for folder in level for below in _folders(folder)]
        if len(level) > 300:  # class folders, not levels of an unpacked archive
            return None
    return None


def locate_beside(root: Path | str, name: str) -> Path | None:
    """The folder of an archive, if the list that belongs to it lies there; else None."""
    folder = Path(root).expanduser().parent
    beside = os.path.isfile(Path(root).expanduser()) and os.path.isfile(folder / name)
    return folder if beside else None


def unpacked_beside(folder: Path, name: str, archives: Sequence[str]) -> Path:
    """The folder that holds `name`: this one, or what one of its `archives` was unpacked to."""
    if not (folder / name).is_dir():
        for archive in archives:
            if (folder / archive).is_file():
                return open_source(folder / archive)
    return folder


def class_folders(root: Path) -> ClassFolders:
    """Class name -> its images, sorted: a class is a folder that holds images itself.

    Classes of one name below several folders, such as `train` and `test`, become one.
    """
    found: ClassFolders = {}
    for folder, images in image_folders(root):
        found.setdefault(folder.name, []).extend(images)
    return {name: sorted(paths) for name, paths in sorted(found.items())}


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file; raises BadData where it is something else."""
    try:
        with open_regular(path) as file:
            for line in file:
                yield line.decode("utf-8")
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: not a UTF-8 text ({error})") from None


def read_rows(path: Path, columns: int) -> Iterator[list[str]]:
    """The lines of a list file, split at white space; the last column takes the rest."""
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split(maxsplit=columns - 1)
        if not words:
            continue
        if len(words) != columns:
            raise BadData(f"{path}: line {number} has {len(words)} columns, not {columns}")
        words[-1] = words[-1].strip()
        yield words


def simplify(name: str) -> str:
    """A class name reduced to its letters and digits, as copies spell the rest in many ways."""
    return re.sub(r"[\W_]+", "", name.casefold())


def image_folders(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """The folders that hold images themselves, in order, each with its images, sorted.

    Names that begin with a dot are passed over.

    Args:
        folder: Folder to begin with.
    """
    for below, files in _walk(folder):
        images = [path for path in files if path.suffix.lower() in SUFFIXES]
        if images:
            yield below, images


def ignored_files(folder: Path) -> list[Path]:
    """The files that `image_folders` passes over for their suffix, such as .xml, in order."""
    return [
        path for _, files in _walk(folder) for path in files if path.suffix.lower() not in SUFFIXES
    ]


def no_images(folder: Path) -> BadData:
    """The error for a folder without images, with the kinds of file that it holds instead.

    Args:
        folder: Folder that was searched.
    """
    if made := _made_by_us(folder):
        return BadData(f"{folder}: {made}")
    kinds = Counter(path.suffix.lower() or "no suffix" for path in ignored_files(folder))
    held = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_LISTED))
    known = ", ".join(sorted(SUFFIXES))
    others = f" among its files ({held})" if held else ""
    return BadData(f"{folder}: no images found{others}; looked for {known}")


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's, whose only images are figures of its results."""
    return all((folder / name).is_file() for name in ("run.json", "metrics.jsonl"))


def _made_by_us(folder: Path) -> str:
    """What a folder is that holds our results instead of images, and what to give; else ""."""
    if (folder / "run.json").is_file():
        return (
            "a run, not images; to train on images from its model: "
            f"{command('train', 'IMAGES', '--start', folder)}; "
            f"to go on with it: {command('train', '--resume', folder)}"
        )
    if any(folder.glob("arrays-*")):
        return f"a gallery, not images; to look at it: {command('serve', folder)}"
    if (folder / "manifest.json").is_file() and any(folder.glob("model-*.json")):
        return "a saved model, not images; give the folder of the images"
    return ""


def same_bytes(paths: Sequence[Path]) -> list[list[int]]:
    """Groups of indices whose files have the same bytes; files that cannot be read are left out.

    Only files that share their length with another are read at all.
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, path in enumerate(paths):
        try:
            by_length[os.stat(path).st_size].append(index)
        except (OSError, ValueError):
            continue
    groups: list[list[int]] = []
    for indices in by_length.values():
        if len(indices) > 1:
            groups += _same_content(paths, indices)
    return sorted(groups)


def _same_content(paths: Sequence[Path], indices: list[int]) -> list[list[int]]:
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for index in indices:
        try:
            with open_regular(paths[index]) as file:
                by_content[hashlib.file_digest(file, "sha256").digest()].append(index)
        except OSError:
            continue
    return [group for group in by_content.values() if len(group) > 1]


def _walk(
    folder: Path, above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[Path, list[Path]]]:
    """Every folder, in order, with the files in it, sorted; a link to a folder above is left out.

    `above` identifies the folders that were passed on the way here.
    """
    below, files = _entries(folder)
    yield folder, files
    if below and len(above) >= _DEEPEST:
        raise BadData(f"{folder}: more than {_DEEPEST} folders deep; name the dataset's own folder")
    status = os.stat(folder)
    here = (*above, (status.st_dev, status.st_ino))
    for path in below:
        if not (os.path.islink(path) and _leads_back(path, here)):
            yield from _walk(path, here)


def _leads_back(link: Path, above: tuple[tuple[int, int], ...]) -> bool:
    target = os.stat(link)
    return (target.st_dev, target.st_ino) in above


def _folders(folder: Path) -> list[Path]:
    return _entries(folder)[0]


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the other entries of a folder, each sorted, without hidden ones."""
    below: list[Path] = []
    files: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    (below if _is_folder(entry) else files).append(folder / entry.name)
    except OSError as error:
        raise BadData(f"{folder}: cannot be listed ({error.strerror})") from None
    return sorted(below), sorted(files)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself: read like a file, and then refused by name
        return False
