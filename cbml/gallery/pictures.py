"""What a gallery knows of each picture, and which pictures a folder, table or set holds."""

import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cbml.data.catalogue.layouts import no_pictures, opened, picture_folders
from cbml.data.checks import load, recognise
from cbml.data.datasets import table
from cbml.data.images import ImageSet, Splits
from cbml.errors import BadData
from cbml.files import replaced_file

__all__ = ["SPLITS", "Listed", "Picture", "Split", "list_pictures", "shown", "write_bad"]

Split = Literal["all", "train", "test"]
SPLITS: tuple[Split, ...] = ("all", "train", "test")
_NO_TEXT = re.compile("[\ud800-\udfff]")  # what Python makes of bytes that are no UTF-8


@dataclass(frozen=True, slots=True)
class Listed:
    """A picture that was found.

    Args:
        path: its file, absolute.
        name: what people call it: its path below the folder that was named.
        label: its class, None when unknown.
    """

    path: str
    name: str
    label: str | None


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in a gallery.

    Args:
        id: given once and never again.
        path: its file, absolute.
        name: as in `Listed`.
        label: as in `Listed`.
        bytes: the length of its file.
        modified: when the file was last written, in nanoseconds.
        sha256: of the file.
        width: in pixels, upright.
        height: likewise.
    """

    id: int
    path: str
    name: str
    label: str | None
    bytes: int
    modified: int
    sha256: str
    width: int
    height: int


def list_pictures(
    source: Path | str, *, split: Split = "all", allow_partial: bool = False
) -> list[Listed]:
    """The pictures of a folder, an archive, a table or a set known by name.

    In a folder the label of a picture is the path of its subfolder; pictures beside subfolders have
    none.

    Args:
        source: what `cbml data check` takes.
        split: "train" and "test" are the halves that `cbml train` makes of it.
        allow_partial: accept a set that is not whole.
    """
    if split not in SPLITS:
        raise BadData(f"split {split!r}: use one of {', '.join(SPLITS)}")
    kind = recognise(source)
    if kind == "folder" and split == "all":
        return _in_folder(opened(source))
    if kind == "table" and split == "all":  # few classes are enough where nothing is split
        splits = table(source, test=0, validation=0, allow_partial=allow_partial)
    else:
        splits = load(source, kind, allow_partial=allow_partial)
    return _named(_of_split(splits, split, str(source)))


def shown(text: str) -> str:
    """Text that every encoding can carry: bytes of a file name that are not UTF-8 become �.

    Args:
        text: a path or a label.
    """
    return _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def write_bad(path: Path, bad: tuple[tuple[str, str], ...]) -> None:
    """Write bad_images.csv.

    Args:
        path: the file to create or replace.
        bad: path and reason of each.
    """
    with (
        replaced_file(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        rows = csv.writer(file)
        rows.writerow(["path", "reason"])
        rows.writerows(bad)


def _in_folder(root: Path) -> list[Listed]:
    root = root.absolute()
    found: list[Listed] = []
    for folder, paths in picture_folders(root):
        label = None if folder == root else shown(folder.relative_to(root).as_posix())
        for path in paths:
            found.append(Listed(str(path), shown(path.relative_to(root).as_posix()), label))
    if not found:
        raise no_pictures(root)
    return found


def _of_split(splits: Splits, split: Split, source: str) -> ImageSet:
    parts = splits.parts()
    wanted = {"train": {"train", "validation"}, "test": {"test", "query", "gallery"}}
    names = wanted.get(split, set(parts))
    chosen = [images for name, images in parts.items() if name in names and len(images)]
    if not chosen:
        raise BadData(f"{source}: has no pictures of the split {split!r}; use --split all")
    joined = chosen[0]
    for images in chosen[1:]:
        joined = joined.joined(images)
    return joined


def _named(images: ImageSet) -> list[Listed]:
    paths = [os.path.abspath(path) for path in images.paths]
    root = _common_folder(paths)
    labels: Sequence[str | None] = [None] * len(paths)
    if images.labels is not None:
        labels = [shown(images.class_names[label]) for label in images.labels.tolist()]
    # A table may name a file twice; its last row holds.
    listed = {
        path: Listed(path, shown(os.path.relpath(path, root)), label)
        for path, label in zip(paths, labels, strict=True)
    }
    return list(listed.values())


def _common_folder(paths: Sequence[str]) -> str:
    folders = {os.path.dirname(path) for path in paths}
    try:
        return os.path.commonpath(list(folders))
    except ValueError:  # several drives have no common folder
        return os.sep
