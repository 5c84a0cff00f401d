"""What a gallery knows of each image, which images a source holds, and what changed since."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cbml.data import (
    ImageDataset,
    Splits,
    datasets,
    folder_images,
    load,
    open_source,
    recognize,
)
from cbml.errors import BadData, check_choice
from cbml.files import sha256, write_csv

Split = Literal["all", "train", "test"]
SPLITS: tuple[Split, ...] = ("all", "train", "test")


@dataclass(frozen=True, slots=True)
class ImageRef:
    """An image that was found and not opened yet.

    Args:
        path: Its file, absolute.
        name: Its path below the folder that was named.
        label: Its class, None when unknown.
    """

    path: str
    name: str
    label: str | None


@dataclass(frozen=True, slots=True)
class GalleryImage:
    """An image in a gallery.

    Args:
        id: Given once and never again.
        path: Its file, absolute.
        name: As in `ImageRef`.
        label: As in `ImageRef`.
        bytes: Length of the file.
        modified: When the file was last written, in nanoseconds.
        sha256: Hash of the file's content.
        width: Pixels, upright.
        height: Pixels, upright.
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


def list_images(
    source: Path | str,
    *,
    split: Split = "all",
    seed: int = 0,
    split_by: Literal["stated", "classes"] = "stated",
    allow_partial: bool = False,
    label_from: str | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
) -> list[ImageRef]:
    """The images of a folder, an archive, a table or a dataset known by name.

    A folder is read as `cbml train` reads it: the label of an image is the path of its subfolder,
    below train, test and the like; images beside subfolders have none, and masks are left out.

    Args:
        source: Anything that `cbml data check` takes.
        split: "train" and "test" are the halves that `cbml train` makes of it.
        seed: Random seed of that run.
        split_by: "stated" takes the splits of a folder or table; "classes" keeps classes apart.
        allow_partial: Accept a dataset that is not complete.
        label_from: Pattern of the file names, such as "{label}_{n}", where they hold the labels;
            "auto" recognizes it.
        path_column: A table's column of the files, where it has an unusual name.
        label_column: A table's column of the labels, where it has an unusual name.
    """
    split = check_choice(split, "split", SPLITS)
    kind = recognize(source)
    if kind == "folder" and split == "all":
        return _in_folder(open_source(source).absolute(), label_from)
    if kind == "table" and split == "all":  # few classes are enough where nothing is split
        splits = datasets.table(
            source,
            test=0,
            validation=0,
            allow_partial=allow_partial,
            path_column=path_column,
            label_column=label_column,
        )
    else:
        splits = load(
            source,
            kind,
            seed=seed,
            split=split_by if kind in {"folder", "table"} else "stated",
            allow_partial=allow_partial,
            label_from=label_from,
            path_column=path_column,
            label_column=label_column,
        )
    return _named(_of_split(splits, split, str(source)))


def shown(text: str) -> str:
    """Text that every encoding can carry: bytes of a file name that are not UTF-8 become \\udcff.

    Two names stay two: one sign for all such bytes would make one class of several.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_bad_images(path: Path, bad: tuple[tuple[str, str], ...]) -> None:
    """Write bad_images.csv: path and reason of each file that cannot be read."""
    write_csv(path, ["path", "reason"], bad)


def _in_folder(root: Path, label_from: str | None) -> list[ImageRef]:
    found = folder_images(root, label_from=label_from)
    refs = [
        ImageRef(str(path), shown(path.relative_to(root).as_posix()), shown(label) or None)
        for path, label in zip(found.paths, found.classes, strict=True)
    ]
    return sorted(refs, key=lambda ref: ref.path)


def _of_split(splits: Splits, split: Split, source: str) -> ImageDataset:
    parts = splits.parts()
    wanted = {"train": {"train", "validation"}, "test": {"test", "query", "gallery"}}
    names = wanted.get(split, set(parts))
    chosen = [images for name, images in parts.items() if name in names and len(images)]
    if not chosen:
        raise BadData(f"{source}: has no images of the split {split!r}; use --split all")
    return functools.reduce(ImageDataset.joined, chosen)


def _named(images: ImageDataset) -> list[ImageRef]:
    paths = [os.path.abspath(path) for path in images.paths]
    root = _common_folder(paths)
    labels: Sequence[str | None] = [None] * len(paths)
    if images.labels is not None:
        labels = [shown(images.class_names[label]) for label in images.labels.tolist()]
    # A table may name a file twice; its last row holds.
    listed = {
        path: ImageRef(path, shown(os.path.relpath(path, root)), label)
        for path, label in zip(paths, labels, strict=True)
    }
    return list(listed.values())


def _common_folder(paths: Sequence[str]) -> str:
    folders = {os.path.dirname(path) for path in paths}
    try:
        return os.path.commonpath(list(folders))
    except ValueError:  # several drives have no common folder
        return os.sep


@dataclass(frozen=True)
class Changes:
    """The images to keep, to embed and to drop.

    `kept` are brought up to date where a file was touched, renamed or relabeled; `new` are new
    files and those with other content than before; `gone` are images whose content is nowhere
    among the files any more. Of the kept, `renamed` have another path and `updated` differ in
    anything from what was known.
    """

    kept: list[GalleryImage]
    new: list[ImageRef]
    gone: list[GalleryImage]
    renamed: int
    updated: int


def changes_since(known: Sequence[GalleryImage], refs: Sequence[ImageRef]) -> Changes:
    """Compare what a gallery knows with the files as they are.

    A file whose length and time are those of before counts as unchanged; of every other one the
    content decides. A content that moved to another path keeps its image and its id.
    """
    by_path = {image.path: image for image in known}
    kept: dict[int, GalleryImage] = {}
    others: list[tuple[ImageRef, os.stat_result | None]] = []
    for ref in refs:
        before, now = by_path.get(ref.path), _stat(ref.path)
        if before is not None and now is not None and _untouched(before, now):
            kept[before.id] = _brought_up(before, ref, now)
        else:
            others.append((ref, now))
    new = _settled(others, [image for image in known if image.id not in kept], kept)
    images = sorted(kept.values(), key=lambda image: image.id)
    earlier = {image.id: image for image in known}
    return Changes(
        kept=images,
        new=new,
        gone=[image for image in known if image.id not in kept],
        renamed=sum(earlier[image.id].path != image.path for image in images),
        updated=sum(earlier[image.id] != image for image in images),
    )


def _settled(
    others: list[tuple[ImageRef, os.stat_result | None]],
    unclaimed: list[GalleryImage],
    kept: dict[int, GalleryImage],
) -> list[ImageRef]:
    """Give touched and moved files their images back, into `kept`; the rest is new."""
    by_content: dict[str, list[GalleryImage]] = {}
    for image in reversed(unclaimed):
        by_content.setdefault(image.sha256, []).append(image)
    sizes = {image.bytes for image in unclaimed}
    contents = {
        ref.path: _content(ref.path) if now is not None and now.st_size in sizes else None
        for ref, now in others
    }
    new: list[ImageRef] = []
    # Those that stayed at their path choose first, so that a copy cannot take their place.
    paths = {image.path: image.sha256 for image in unclaimed}
    stayed = [pair for pair in others if contents[pair[0].path] == paths.get(pair[0].path, "")]
    moved = [pair for pair in others if contents[pair[0].path] != paths.get(pair[0].path, "")]
    for ref, now in stayed + moved:
        candidates = by_content.get(contents[ref.path] or "", [])
        if now is None or not candidates:
            new.append(ref)
            continue
        same_path = [image for image in candidates if image.path == ref.path]
        image = same_path[0] if same_path else candidates[-1]
        candidates.remove(image)
        kept[image.id] = _brought_up(image, ref, now)
    order = {ref.path: index for index, (ref, _) in enumerate(others)}
    return sorted(new, key=lambda ref: order[ref.path])


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _untouched(image: GalleryImage, now: os.stat_result) -> bool:
    return (image.bytes, image.modified) == (now.st_size, now.st_mtime_ns)


def _brought_up(image: GalleryImage, ref: ImageRef, now: os.stat_result) -> GalleryImage:
    return dataclasses.replace(
        image, path=ref.path, name=ref.name, label=ref.label, modified=now.st_mtime_ns
    )


def _content(path: str) -> str | None:
    try:
        return sha256(Path(path))
    except OSError:
        return None
