"""CUB-200-2011: the first hundred of the official classes train, the second hundred test."""

import csv
from pathlib import Path

from cbml.data.catalogue.layouts import class_folders, locate, opened, packaged, read_rows, simple
from cbml.data.catalogue.protocol import Found, checked_splits, unrecognised
from cbml.data.images import Splits
from cbml.data.splits import Fold
from cbml.errors import BadData

__all__ = ["cub"]


def cub(
    root: Path | str,
    *,
    validation: float | Fold = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
) -> Splits:
    """CUB-200-2011: birds of 200 species, classes 1-100 to train, 101-200 to test.

    Reads the official folder (images.txt, image_class_labels.txt) and copies with a folder for each
    class, with or without `train` and `test` above them.

    Args:
        root: the folder, one above it, or the archive CUB_200_2011.tgz.
        validation: share of the training classes to hold out, 0 for none; or a Fold.
        seed: of the choice of the held-out classes.
        allow_partial: accept a set that is not whole; recorded.
    """
    folder = opened(root)
    listed = locate(folder, ["images.txt", "image_class_labels.txt"])
    found = _listed_birds(listed) if listed else _bird_folders(folder)
    return checked_splits(
        "cub", found, validation=validation, seed=seed, allow_partial=allow_partial
    )


def _bird_classes() -> dict[str, int]:
    """Official class name -> how many pictures it has, in the official order."""
    rows = csv.DictReader(packaged("cub_classes.csv").splitlines())
    return {row["name"]: int(row["pictures"]) for row in rows}


def _listed_birds(root: Path) -> Found:
    found = Found("images.txt", root)
    names = list(_bird_classes())
    labels = {number: int(label) for number, label in read_rows(root / "image_class_labels.txt", 2)}
    rows = []
    for number, path in read_rows(root / "images.txt", 2):
        if not 1 <= labels.get(number, 0) <= len(names):
            raise BadData(
                f"{root}/image_class_labels.txt: no class from 1 to {len(names)} for picture "
                f"{number}; take the file from the official archive"
            )
        rows.append((labels[number], path))
    for label, path in sorted(rows):
        found.add(root / "images" / path, names[label - 1], "train" if label <= 100 else "test")
    return found


def _bird_folders(root: Path) -> Found:
    found = Found("a folder for each class", root)
    official = _bird_classes()
    by_name = {simple(name): name for name in official}
    by_name |= {simple(name.partition(".")[2]): name for name in official}
    present = {}
    for name, paths in class_folders(root).items():
        known = by_name.get(simple(name))
        if known:
            present[known] = paths
        else:
            found.extra.append(f"{name} ({len(paths)} pictures)")
    if not present:
        raise unrecognised(
            "cub", root, ["images.txt", "class folders as 001.Black_footed_Albatross"]
        )
    for number, (name, expected) in enumerate(official.items(), start=1):
        paths = present.get(name, [])
        found.add_all(paths, name, "train" if number <= 100 else "test")
        if len(paths) < expected:
            found.missing.append(f"{name} ({expected - len(paths)} of {expected} pictures)")
        elif len(paths) > expected:
            found.extra.append(f"{name} ({len(paths) - expected} more than {expected} pictures)")
    return found
