"""Anybody's folder of images: classes by folder or by file name, with splits or without."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from cbml.data.discovery import Found, image_folders, no_images, open_source
from cbml.data.file_names import find_pattern, labels_from_names
from cbml.data.image_dataset import Splits
from cbml.data.masks import find_masks
from cbml.data.splits import SPLIT_NAMES, class_splits, stated_splits, unlabeled_splits
from cbml.data.table import find_metadata, metadata_splits
from cbml.errors import BadData

__all__ = ["Labels", "SplitBy", "folder"]

Labels = Literal["folders", "names"]
SplitBy = Literal["stated", "classes"]
Folders = Mapping[Path, list[Path]]

_SHOWN = 5


def folder(
    path: Path | str,
    *,
    test: float = 0.5,
    validation: float = 0.2,
    seed: int = 0,
    labels: Labels = "folders",
    label_from: str | None = None,
    split: SplitBy = "stated",
) -> Splits:
    """A folder for each class, labels in file names, or a flat folder without labels.

    A class is a folder that holds images itself; its name is its path. Folders named train,
    validation (val, valid), test, query or gallery, up to two levels below `path`, are splits, and
    the same class in several of them is one class; what lies beside them is left out. Without
    splits half of the classes, chosen with the seed, are kept for the test, and validation classes
    are held out of the other half. Folders of masks are left out; `record["left_out"]` names all
    that was. A folder with metadata.csv (.jsonl, .parquet) that holds labels is read by it.

    Args:
        path: the folder, or an archive of it.
        test: share of the classes to test on; 0 for none.
        validation: share of the other classes to hold out; 0 for none.
        seed: random seed of the choice of classes.
        labels: "folders", or "names" for classes that are part of the file names.
        label_from: pattern of the file names, such as "{label}_{n}"; "auto" recognizes it.
        split: "stated" takes the splits that are there; "classes" keeps the classes apart instead.
    """
    root = open_source(path)
    folders = dict(image_folders(root))
    if not folders:
        raise no_images(root)
    named = labels == "names" or label_from is not None
    if find_metadata(root) and not named:
        found = metadata_splits(root)
        if found is not None:
            return _made(found, test, validation, seed, split)
    masks = find_masks(root, folders)
    kept = {below: paths for below, paths in folders.items() if below not in masks}
    inner = _inner(root, kept)
    found, beside = _found(inner, kept)
    if named:
        stated = None if label_from == "auto" else label_from
        pattern = stated or find_pattern(found.paths)
        if pattern is None:
            raise BadData(f"{root}: the file names follow no known pattern; state it: --label-from")
        found.classes = labels_from_names(found.paths, pattern)
        found.layout = f"labels in file names, {pattern}"
    splits = _split_up(
        inner, found, named, test=test, validation=validation, seed=seed, split=split
    )
    left_out = {below: f"masks ({why})" for below, why in masks.items()}
    left_out |= dict.fromkeys(beside, "beside the splits")
    _note_left_out(splits, root, folders, left_out)
    return splits


def _split_up(
    root: Path,
    found: Found,
    named: bool,
    *,
    test: float,
    validation: float,
    seed: int,
    split: SplitBy,
) -> Splits:
    bare = [path for path, name in zip(found.paths, found.classes, strict=True) if not name]
    if not bare or named:
        return _made(found, test, validation, seed, split)
    pattern = find_pattern(bare)
    if len(bare) < len(found.paths) or set(found.splits) != {""}:
        hint = f"take labels from file names ({pattern}): --labels names" if pattern else ""
        raise BadData(
            f"{bare[0].parent}: holds {len(bare)} images beside class folders, such as "
            f"{bare[0].name}; put every image into a class folder, "
            f"{hint or 'or learn without labels: --labels none'}"
        )
    splits = unlabeled_splits("folder", root, "a flat folder", bare)
    if pattern is not None:
        names = sorted(set(labels_from_names(bare, pattern))) if _all_match(bare, pattern) else []
        splits.record["name_pattern"] = pattern
        splits.record["notes"].append(
            f"{len(names)} classes by name ({pattern}): {', '.join(names[:_SHOWN])}"
            f"{', ...' if names[_SHOWN:] else ''}; --labels names uses them"
        )
    return splits


def _all_match(paths: list[Path], pattern: str) -> bool:
    try:
        labels_from_names(paths, pattern)
    except BadData:
        return False
    return True


def _made(found: Found, test: float, validation: float, seed: int, split: SplitBy) -> Splits:
    if split == "stated" and len(set(found.splits)) > 1:
        return stated_splits("folder", found, validation=validation, seed=seed)
    return class_splits("folder", found, test=test, validation=validation, seed=seed)


def _found(root: Path, folders: Folders) -> tuple[Found, list[Path]]:
    """All images with class and split, "" where there is none; and the folders beside the splits.

    A class stands below its split, or above it where several folders have splits of their own.
    """
    parents = _split_parents(root, folders)
    found = Found(
        "splits, with a folder for each class" if parents else "a folder for each class", root
    )
    beside = []
    for below, paths in folders.items():
        above = next((parent for parent in parents if parent in below.parents), None)
        parts = below.relative_to(above or root).parts
        if above is None and not parents:
            found.add_all(paths, "/".join(parts), "")
        elif above is None or parts[0].casefold() not in SPLIT_NAMES:
            beside.append(below)
        else:
            name = [*(above.relative_to(root).parts if len(parents) > 1 else ()), *parts[1:]]
            found.add_all(paths, "/".join(name), SPLIT_NAMES[parts[0].casefold()])
    return found, beside


def _split_parents(root: Path, folders: Folders) -> list[Path]:
    """The folders, at the first of three levels that has any, that hold two splits or more."""
    for depth in range(3):
        parents: dict[Path, set[str]] = defaultdict(set)
        for below in folders:
            parts = below.relative_to(root).parts
            if len(parts) > depth and parts[depth].casefold() in SPLIT_NAMES:
                parents[root.joinpath(*parts[:depth])].add(SPLIT_NAMES[parts[depth].casefold()])
        chosen = [parent for parent, splits in parents.items() if len(splits) > 1]
        if chosen:
            return chosen
    return []


def _inner(root: Path, folders: Folders) -> Path:
    """Below folders that hold nothing but one folder, as archives have them on top."""
    while root not in folders:
        names = {below.relative_to(root).parts[0] for below in folders}
        if len(names) > 1 or (root / min(names) in folders and len(folders) > 1):
            return root
        root = root / min(names)
    return root


def _note_left_out(
    splits: Splits, root: Path, folders: Folders, left_out: Mapping[Path, str]
) -> None:
    rows = [
        {"folder": below.relative_to(root).as_posix(), "images": len(folders[below]), "reason": why}
        for below, why in left_out.items()
    ]
    splits.record["left_out"] = rows
    for row in rows[:_SHOWN]:
        splits.record["notes"].append(
            f"left out: {row['folder']}, {row['images']:,} images, {row['reason']}"
        )
    if rows[_SHOWN:]:
        splits.record["notes"].append(f"left out: {len(rows) - _SHOWN:,} more folders")
