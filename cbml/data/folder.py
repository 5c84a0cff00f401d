"""Your own folder of images: classes by folder or by file name, with splits or without."""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from PIL import Image

from cbml.data.discovery import Found, image_folders, is_run, no_images, open_source
from cbml.data.image_dataset import Splits
from cbml.data.splits import SPLIT_NAMES, class_splits, stated_splits, unlabeled_splits
from cbml.data.table import find_metadata, metadata_splits
from cbml.errors import BadData
from cbml.regular import open_regular

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
        path: The folder, or an archive of it.
        test: Share of the classes to test on; 0 for none.
        validation: Share of the other classes to hold out; 0 for none.
        seed: Random seed of the choice of classes.
        labels: "folders", or "names" for classes that are part of the file names.
        label_from: Pattern of the file names, such as "{label}_{n}"; "auto" recognizes it.
        split: "stated" takes the splits that are there; "classes" keeps the classes apart instead.
    """
    root = open_source(path)
    folders = dict(image_folders(root))
    if not folders or is_run(root):
        raise no_images(root)
    named = labels == "names" or label_from is not None
    if find_metadata(root) and not named:
        found = metadata_splits(root)
        if found is not None:
            return _made(found, test, validation, seed, split)
    masks = find_masks(root, folders)
    found, beside = _found(*_without(masks, root, folders))
    found.root = root
    if named:
        _name_classes(found, label_from)
    splits = _split_up(found, named, test=test, validation=validation, seed=seed, split=split)
    left_out = masks | dict.fromkeys(beside, "beside the splits")
    splits.record["left_out"] = [
        {"folder": below.relative_to(root).as_posix(), "images": len(folders[below]), "reason": why}
        for below, why in left_out.items()
    ]
    splits.record["notes"] += _left_out(root, folders, left_out)
    return splits


def folder_images(path: Path | str, *, label_from: str | None = None) -> Found:
    """All images of a folder with the classes that `folder` reads, "" where there are none.

    Splits are joined, and what lies beside them is kept; a warning names folders of masks, which
    are left out.

    Args:
        path: As for `folder`.
        label_from: As for `folder`.
    """
    root = open_source(path)
    folders = dict(image_folders(root))
    if not folders or is_run(root):
        raise no_images(root)
    if find_metadata(root) and label_from is None:
        found = metadata_splits(root)
        if found is not None:
            return found
    masks = find_masks(root, folders)
    found, beside = _found(*_without(masks, root, folders))
    for below in beside:
        found.add_all(folders[below], below.relative_to(found.root).as_posix(), "")
    if found.root != root and not any(found.classes):  # a single folder, and still a label
        found.classes = [found.root.name] * len(found.paths)
    if label_from is not None:
        _name_classes(found, label_from)
    for line in _left_out(root, folders, masks):
        warnings.warn(f"{root}: {line}", stacklevel=2)
    return found


def _without(masks: Mapping[Path, str], root: Path, folders: Folders) -> tuple[Path, Folders]:
    """The folders that hold no masks, and the folder below which all of them lie."""
    kept = {below: paths for below, paths in folders.items() if below not in masks}
    return _inner(root, kept), kept


def _name_classes(found: Found, label_from: str | None) -> None:
    """Take the classes from the file names instead, by the pattern, or by one that is found."""
    pattern = find_pattern(found.paths) if label_from in (None, "auto") else label_from
    if pattern is None:
        raise BadData(
            f"{found.root}: the file names follow no known pattern; state it: --label-from"
        )
    found.classes = labels_from_names(found.paths, pattern)
    found.layout = f"labels in file names, {pattern}"


def _split_up(
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
            f"{bare[0].parent}: holds {len(bare):,} {_images(len(bare))} beside class folders, "
            f"such as {bare[0].name}; put every image into a class folder, "
            f"{hint or 'or learn without labels: --labels none'}"
        )
    splits = unlabeled_splits("folder", found.root, "a flat folder", bare)
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


def _left_out(root: Path, folders: Folders, left_out: Mapping[Path, str]) -> list[str]:
    """A line for each folder that was left out; one for all below a folder that keeps none."""
    kept = [below for below in folders if below not in left_out]
    above = {place for below in kept for place in (below, *below.parents)}
    groups: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for below, why in left_out.items():
        groups[below if below.parent in above else below.parent, why].append(below)
    lines = []
    for (folder, why), members in groups.items():
        images = sum(len(folders[below]) for below in members)
        inside = f" in {len(members)} folders" if len(members) > 1 else ""
        name = (members[0] if len(members) == 1 else folder).relative_to(root).as_posix()
        lines.append(f"left out: {name}, {images:,} {_images(images)}{inside}, {why}")
    more = [f"left out: {len(lines) - _SHOWN:,} more folders"] if lines[_SHOWN:] else []
    return lines[:_SHOWN] + more


def _images(count: int) -> str:
    return "image" if count == 1 else "images"


# Labels that are part of file names, such as Abyssinian_12.jpg or 0001_c1_000151.jpg.
#
# A pattern states how a name is made: {label} is the class, {n} is a number, and any other field,
# such as {camera}, is a part without separators. The suffix of the file does not count.

_SHARE = 0.95  # of the names that must follow a pattern for it to be proposed
_ENDINGS = ("_{n}", "-{n}", ".{n}", " ({n})", " {n}", "{n}")
_CAMERAS = {"img", "image", "dsc", "dscn", "dscf", "pxl", "mvi", "photo", "picture", "screenshot"}


def find_pattern(paths: Sequence[Path]) -> str | None:
    """The first pattern that nearly all names follow and that gives classes of several images."""
    stems = [path.stem for path in paths]
    for pattern in [*_field_patterns(stems), *_number_patterns()]:
        found = [match["label"] for match in map(_compiled(pattern).fullmatch, stems) if match]
        if len(found) >= _SHARE * len(stems) and _plausible(found):
            return pattern
    return None


def labels_from_names(paths: Sequence[Path], pattern: str) -> list[str]:
    """The label of each file by its name; raises BadData where a name does not follow the pattern.

    Args:
        pattern: Such as "{label}_{n}".
    """
    compiled = _compiled(pattern)
    matches = [compiled.fullmatch(path.stem) for path in paths]
    others = [path for path, match in zip(paths, matches, strict=True) if match is None]
    if others:
        raise BadData(
            f"{len(others):,} of {len(paths):,} file names do not follow the pattern {pattern}, "
            f"such as {others[0].name}; give another with --label-from, or move these files away"
        )
    return [match["label"] for match in matches if match]


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w*)\}", pattern)  # text, field, text, field ... text
    if parts[1::2].count("label") != 1:
        raise BadData(f"--label-from {pattern}: name the class once, as in '{{label}}_{{n}}'")
    fields = {"label": r"(?P<label>\S.*)", "n": r"(?<!\d)\d+"}  # a whole number
    return re.compile(
        "".join(
            fields.get(part, r"[^\s_.-]+") if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        )
    )


def _number_patterns() -> list[str]:
    """A name and up to three numbers behind it; most numbers first, as all of them count images."""
    return [f"{{label}}{ending * count}" for count in (3, 2, 1) for ending in _ENDINGS[:3]] + [
        f"{{label}}{ending}" for ending in _ENDINGS[3:]
    ]


def _field_patterns(stems: Sequence[str]) -> list[str]:
    """Names of as many fields each, of which the second tells a camera or a sequence: id_c1_7."""
    (fields, count), *_ = Counter(stem.count("_") + 1 for stem in stems).most_common(1)
    if fields < 3 or count < _SHARE * len(stems):
        return []
    split = [stem.split("_") for stem in stems]
    cameras = sum(bool(re.match(r"[A-Za-z]{0,4}\d", words[1])) for words in split if words[1:])
    if cameras < _SHARE * len(stems):
        return []
    return ["{label}_{camera}" + "_{frame}" * (fields - 2)]


def _plausible(labels: Sequence[str]) -> bool:
    """At least two classes of two images on average, and not the counter of a camera."""
    sizes = Counter(labels)
    cameras = all(label.casefold().rstrip("_- ") in _CAMERAS for label in sizes)
    letters = any(character.isalnum() for label in sizes for character in label)
    return len(sizes) > 1 and len(labels) >= 2 * len(sizes) and letters and not cameras


# Folders of masks beside the images they belong to, told by names and by pixels.
#
# No sign is enough alone: classes number their files alike, and drawings have few colors too. Two
# of three are asked for: the folder is called so, its files repeat the names of others, its images
# are palette or gray images of few values.

_NAMES = re.compile(
    r"(.*[ _-])?(masks?|annotations?|segmentations?|segmentationclass|trimaps?|gt|groundtruth)",
    re.IGNORECASE,
)
_REPEATED = 0.9
_FEW_VALUES = 32
_SAMPLES = 3
_FOLDERS_TO_OPEN = 50  # with more, class folders are what they are


def find_masks(root: Path, folders: Mapping[Path, list[Path]]) -> dict[Path, str]:
    """Folders that seem to hold masks -> why; empty where nothing else would be left.

    Args:
        folders: Each folder below it that holds images, with the images.
    """
    found: dict[Path, str] = {}
    for folder, paths in folders.items():
        named = any(_NAMES.fullmatch(part) for part in folder.relative_to(root).parts)
        if not named and len(folders) > _FOLDERS_TO_OPEN:
            continue
        reasons = ["by name"] if named else []
        if _repeats(folder, folders):
            reasons.append("files named as others")
        if reasons and _few_values(paths):
            reasons.append("few values")
        if len(reasons) > 1:
            found[folder] = f"masks ({', '.join(reasons)})"
    return found if len(found) < len(folders) else {}


def _repeats(folder: Path, folders: Mapping[Path, list[Path]]) -> bool:
    """Whether one other folder has a file of the same name for nearly each of this one's."""
    stems = {path.stem for path in folders[folder]}
    return any(
        len(stems & {path.stem for path in paths}) >= _REPEATED * len(stems)
        for other, paths in folders.items()
        if other != folder and len(paths) >= _REPEATED * len(stems)
    )


def _few_values(paths: list[Path]) -> bool:
    """Whether some of the images, evenly chosen, are all palette or gray images of few values."""
    step = max(1, len(paths) // _SAMPLES)
    for path in paths[::step][:_SAMPLES]:
        try:
            with (
                open_regular(path) as file,
                Image.open(file, formats=("PNG", "BMP", "GIF")) as image,
            ):
                if image.mode not in {"P", "L", "1"} or image.getcolors(_FEW_VALUES) is None:
                    return False
        except Exception:  # an unreadable image tells nothing; it is listed when it is decoded
            return False
    return bool(paths)
