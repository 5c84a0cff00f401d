"""ImageNet ILSVRC 2012 by class: the first 500 classes train, the others are searched.

The counts of the protocol decide what each part holds: 667,289 pictures to train are the 642,289
of the first 500 classes and their 25,000 validation pictures (no class has more than 1,300, so the
official training pictures alone cannot be so many); the gallery is the 638,878 training pictures of
the other classes, and their 25,000 validation pictures are the queries.
"""

import csv
from pathlib import Path

from cbml.data.catalogue.layouts import ClassFolders, class_folders, locate, opened
from cbml.data.catalogue.protocol import Found, checked_splits, unrecognised
from cbml.data.images import Splits
from cbml.data.splits import Fold
from cbml.errors import BadData

__all__ = ["imagenet"]

_ANSWERS = "LOC_val_solution.csv"


def imagenet(
    root: Path | str,
    *,
    validation: float | Fold = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
) -> Splits:
    """ImageNet with 500 classes to train and 500 unseen ones as query and gallery, by wnid.

    Reads `train` and `val` with a folder for each wnid (n01440764 ...), also where `val` is flat
    beside LOC_val_solution.csv.

    Args:
        root: the folder above `train` and `val`, one above it, or an archive of it.
        validation: share of the training classes to hold out, 0 for none; or a Fold.
        seed: of the choice of the held-out classes.
        allow_partial: accept a set that is not whole; recorded.
    """
    folder = opened(root)
    # Kaggle's copy keeps the pictures three folders deep.
    kaggle = folder / "ILSVRC" / "Data" / "CLS-LOC"
    place = kaggle if kaggle.is_dir() else locate(folder, ["train", "val"])
    if place is None:
        raise unrecognised("imagenet", folder, ["train and val with a folder for each wnid"])
    found = Found("train and val by wnid", place)
    learned = class_folders(place / "train")
    asked = _validation(place / "val", folder)
    for number, wnid in enumerate(sorted(learned.keys() | asked.keys())):
        first = number < 500 if len(learned) > 500 else number < len(learned) / 2
        found.add_all(learned.get(wnid, []), wnid, "train" if first else "gallery")
        found.add_all(asked.get(wnid, []), wnid, "train" if first else "query")
    return checked_splits(
        "imagenet", found, validation=validation, seed=seed, allow_partial=allow_partial
    )


def _validation(folder: Path, root: Path) -> ClassFolders:
    folders = class_folders(folder)
    if set(folders) != {folder.name}:
        return folders
    answers = next(
        (path / _ANSWERS for path in (root, folder.parent, folder) if (path / _ANSWERS).exists()),
        None,
    )
    if answers is None:
        raise BadData(
            f"imagenet: {folder} is flat; sort it into a folder for each wnid, or put {_ANSWERS} "
            f"into {root}"
        )
    wnids: dict[str, str] = {}
    with answers.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            wnids[row["ImageId"]] = row["PredictionString"].split()[0]
    found: ClassFolders = {}
    for path in folders[folder.name]:
        if path.stem not in wnids:
            raise BadData(f"{answers}: no row for {path.name}")
        found.setdefault(wnids[path.stem], []).append(path)
    return found
