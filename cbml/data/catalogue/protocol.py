"""Rows of a benchmark -> its splits, if they are what the protocol says they are."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cbml.data.images import ROLES, ImageSet, Splits
from cbml.data.splits import Fold, described, paired, split_notes, with_validation
from cbml.errors import BadData

__all__ = ["COUNTS", "Found", "checked_splits", "unrecognised", "validation_record"]

Expected = Mapping[str, tuple[int, int]]  # split -> pictures, classes

# What each protocol says, as printed in the paper and checked against the official lists.
COUNTS: Mapping[str, Expected] = {
    "cub": {"train": (5_864, 100), "test": (5_924, 100)},
    "cars": {"train": (8_054, 98), "test": (8_131, 98)},
    "sop": {"train": (59_551, 11_318), "test": (60_502, 11_316)},
    "inshop": {"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)},
    "imagenet": {"train": (667_289, 500), "query": (25_000, 500), "gallery": (638_878, 500)},
    "emoji": {"train": (5_628, 844), "test": (5_791, 844)},
}

_LISTED = 10


@dataclass
class Found:
    """What a layout holds: for each picture its file, its class and its split.

    Args:
        layout: how the set was recognised.
        root: the folder it was recognised in.
        paths: the files.
        classes: the class name of each.
        splits: the split of each, such as "train" or "gallery".
        missing: what the layout names but the disk does not hold.
        extra: what the disk holds but the protocol does not know.
    """

    layout: str
    root: Path
    paths: list[Path] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    _present: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False)

    def add(self, path: Path, name: str, split: str) -> None:
        """Add a picture that a list names, or note that its file is missing.

        Args:
            path: its file.
            name: its class.
            split: its split.
        """
        # One listing of a folder answers for all its files; asking for each takes far longer.
        folder = os.path.dirname(path)
        if folder not in self._present:
            self._present[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if path.name not in self._present[folder]:
            self.missing.append(os.path.relpath(path, self.root))
            return
        self.paths.append(path)
        self.classes.append(name)
        self.splits.append(split)

    def add_all(self, paths: Iterable[Path], name: str, split: str) -> None:
        """Add pictures of one class that were found on disk.

        Args:
            paths: their files.
            name: their class.
            split: their split.
        """
        for path in paths:
            self.paths.append(path)
            self.classes.append(name)
            self.splits.append(split)

    def images(self, split: Sequence[str]) -> ImageSet:
        """The pictures of some splits, their classes in the order of appearance.

        Args:
            split: which ones; query and gallery together keep their roles.
        """
        places = [place for place, name in enumerate(self.splits) if name in split]
        numbers: dict[str, int] = {}
        labels = [numbers.setdefault(self.classes[place], len(numbers)) for place in places]
        roles = tuple(self.splits[place] for place in places) if split == ROLES else None
        paths = tuple(self.paths[place] for place in places)
        return ImageSet(paths, np.array(labels, dtype=np.int64), tuple(numbers), roles)


def checked_splits(
    name: str,
    found: Found,
    *,
    validation: float | Fold,
    seed: int,
    allow_partial: bool,
) -> Splits:
    """The splits of a benchmark; raises BadData with all that is missing or extra.

    Args:
        name: of the set, as in COUNTS.
        found: what is there.
        validation: share of the training classes to hold out, or a fold.
        seed: of the choice of these classes.
        allow_partial: go on with what is there, and say so in the record.
    """
    expected = COUNTS[name]
    problems = _problems(found, expected)
    if problems and not (allow_partial and found.paths):
        raise BadData(
            f"{name}: {found.root} (read as {found.layout}) is not the whole set: "
            f"{'; '.join(problems)}. Complete it, or accept what is there with --allow-partial "
            "(allow_partial=True)"
        )
    train, held = with_validation(found.images(("train",)), validation=validation, seed=seed)
    test = query = gallery = None
    if "query" in expected:
        query, gallery = paired(found.images(ROLES))
    else:
        test = found.images(("test",))
    record: dict[str, Any] = {
        "set": name,
        "root": str(found.root),
        "layout": found.layout,
        "validation": validation_record(validation),
        "seed": seed,
        "allow_partial": allow_partial,
        "partial": problems,
    }
    splits = Splits(train, held, test, query, gallery, record)
    record["counts"] = described(splits)
    record["notes"] = split_notes(splits, test=0, validation=validation)
    return splits


def validation_record(validation: float | Fold) -> float | str:
    """How the held-out classes were chosen, as stored in run records.

    Args:
        validation: a share or a fold.
    """
    if isinstance(validation, Fold):
        return f"fold {validation.number} of {validation.of}"
    return validation


def unrecognised(name: str, root: Path, layouts: Sequence[str]) -> BadData:
    """The error for a folder in which no layout was found.

    Args:
        name: of the set.
        root: where it was looked for.
        layouts: what would have been recognised.
    """
    return BadData(f"{name}: nothing recognised in {root}; expected {', or '.join(layouts)}")


def _problems(found: Found, expected: Expected) -> list[str]:
    problems = []
    splits = np.array(found.splits)
    for split, (pictures, classes) in expected.items():
        places = np.flatnonzero(splits == split).tolist()
        here = (len(places), len({found.classes[place] for place in places}))
        if here != (pictures, classes):
            problems.append(
                f"{split} has {here[0]:,} pictures of {here[1]:,} classes, "
                f"expected {pictures:,} of {classes:,}"
            )
    if found.missing:
        problems.append(_listed("missing", found.missing))
    if problems and found.extra:
        problems.append(_listed("extra", found.extra))
    return problems


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return f"{what}: {shown}" + (f" and {len(names) - _LISTED:,} more" if names[_LISTED:] else "")
