"""What is in a folder, an archive or a table, and what is wrong with it."""

import contextlib
import difflib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbml.data.ahead import in_order
from cbml.data.catalogue.layouts import class_folders, ignored_files, locate, opened, simple
from cbml.data.catalogue.protocol import COUNTS
from cbml.data.datasets import DATASETS
from cbml.data.decode import BadPicture, read_picture
from cbml.data.duplicates import same_bytes
from cbml.data.images import ImageSet, Splits
from cbml.data.named import named_set
from cbml.errors import BadData

__all__ = ["Report", "check", "load", "recognise"]

Progress = Callable[[int, int], None]

# What only one set has: enough to know it by.
_MARKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cub": (("images.txt", "image_class_labels.txt"),),
    "cars": (("cars_annos.mat",), ("cars_train", "cars_test")),
    "sop": (("Ebay_train.txt",), ("Ebay_test.txt",)),
    "inshop": (("list_eval_partition.txt",), ("Eval/list_eval_partition.txt",)),
    "imagenet": (("ILSVRC/Data/CLS-LOC",), ("train/n01440764",), ("train/n01443537",)),
}
_CLASSES = {
    "cub": {"001blackfootedalbatross", "blackfootedalbatross", "200commonyellowthroat"},
    "cars": {"amgeneralhummersuv2000", "smartfortwoconvertible2012", "acurarlsedan2012"},
}


@dataclass(frozen=True)
class Report:
    """What `check` found.

    Args:
        recognised: the name of the set in the catalogue.
        record: what was decided when it was loaded: layout, counts, seed and the like.
        class_sizes: for each split smallest, median and largest number of pictures of a class.
        bad: path and reason of every picture that cannot be read.
        ignored: files of a folder that are no pictures by their suffix, such as .heic.
        duplicates: groups of paths whose files have the same bytes.
        across: the groups of them that stand both in train and in test.
    """

    recognised: str
    record: dict[str, Any]
    class_sizes: dict[str, dict[str, float]]
    bad: list[tuple[str, str]]
    ignored: list[str]
    duplicates: list[list[str]]
    across: list[list[str]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def recognise(source: Path | str) -> str:
    """The name of the catalogue's set that a path most likely is; "folder" if none is known.

    Args:
        source: a folder, an archive, a table, or a set's name.
    """
    if _is_name(source):
        return str(source)
    path = Path(source)
    if path.suffix.lower() in {".csv", ".parquet", ".pq"}:
        return "table"
    root = opened(path)
    for name, choices in _MARKS.items():
        if any(locate(root, list(marks)) is not None for marks in choices):
            return name
    folders = {simple(name) for name in class_folders(root)}
    return next((name for name, marks in _CLASSES.items() if marks & folders), "folder")


def load(
    source: Path | str,
    name: str | None = None,
    *,
    validation: float = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
) -> Splits:
    """The splits of whatever a path holds, or of a set known by name.

    Args:
        source: a folder, an archive, a table, or a set's name, such as "emoji" or "cub"; the latter
            is looked for where CBML_DATA says and where `cbml data get` puts it.
        name: of the set in the catalogue; recognised when None.
        validation: share of the training classes to hold out, 0 for none.
        seed: of the choice of held-out classes.
        allow_partial: accept a set that is not whole; recorded.
    """
    name = name or recognise(source)
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadData(f"{name}: no such set; {hint}known are {', '.join(DATASETS)}")
    if name == "folder":
        return DATASETS[name](source, validation=validation, seed=seed)
    root: Path | str | None = source
    if _is_name(source):
        root = None if name == "emoji" else named_set(str(source))
    return DATASETS[name](root, validation=validation, seed=seed, allow_partial=allow_partial)


def _is_name(source: Path | str) -> bool:
    """Whether it is a set's name; a folder that is called so comes first."""
    return str(source) in COUNTS and not Path(source).exists()


def check(splits: Splits, *, workers: int = 2, progress: Progress | None = None) -> Report:
    """Read every picture of a set once and tell what is wrong with it.

    Args:
        splits: what `load` or a function of the catalogue gave.
        workers: how many pictures are decoded at once.
        progress: called with pictures done and pictures in all.
    """
    parts = splits.parts()
    places = [(name, path) for name, images in parts.items() for path in images.paths]
    bad = _unreadable([path for _, path in places], workers, progress)
    groups = same_bytes([path for _, path in places])
    learned = {"train", "validation"}

    def both_sides(group: list[int]) -> bool:
        sides = {places[place][0] in learned for place in group}
        return len(sides) == 2

    return Report(
        recognised=str(splits.record.get("set", "folder")),
        record=splits.record,
        class_sizes={
            name: _sizes(images)
            for name, images in parts.items()
            if images.labels is not None and len(images)
        },
        bad=bad,
        ignored=_ignored(splits),
        duplicates=[[str(places[place][1]) for place in group] for group in groups],
        across=[
            [str(places[place][1]) for place in group] for group in groups if both_sides(group)
        ],
    )


def _unreadable(
    paths: Sequence[Path], workers: int, progress: Progress | None
) -> list[tuple[str, str]]:
    def reason(path: Path) -> str:
        try:
            read_picture(path)
            return ""
        except BadPicture as refusal:
            return refusal.reason

    bad = []
    reasons = in_order(reason, paths, workers=workers, ahead=4 * workers)
    with contextlib.closing(reasons):
        for done, (path, why) in enumerate(zip(paths, reasons, strict=True), 1):
            if why:
                bad.append((str(path), why))
            if progress is not None:
                progress(done, len(paths))
    return bad


def _ignored(splits: Splits) -> list[str]:
    """Only of users' own folders: the lists of a benchmark are no pictures and not ignored."""
    if splits.record.get("set") != "folder":
        return []
    return [str(path) for path in ignored_files(Path(splits.record["root"]))]


def _sizes(images: ImageSet) -> dict[str, float]:
    sizes = images.class_sizes()
    sizes = sizes[sizes > 0]
    return {
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
    }
