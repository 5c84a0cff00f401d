"""ImageNet ILSVRC 2012 by class: the first 500 classes train, the others are searched.

The counts of the protocol decide what each part holds: 667,289 images to train are the 642,289
of the first 500 classes and their 25,000 validation images (no class has more than 1,300, so the
official training images alone cannot be so many); the gallery is the 638,878 training images of
the other classes, and their 25,000 validation images are the queries.
"""

import csv
import re
from pathlib import Path

from cbml.data.discovery import (
    ClassFolders,
    Found,
    class_folders,
    locate,
    open_source,
    read_lines,
)
from cbml.data.spec import DatasetSpec, unrecognized
from cbml.errors import BadData

_ANSWERS = "LOC_val_solution.csv"


def _find(root: Path | str) -> Found:
    """`train` and `val` by wnid; `val` may be flat beside LOC_val_solution.csv."""
    folder = open_source(root)
    # Kaggle's copy keeps the images three folders deep.
    kaggle = folder / "ILSVRC" / "Data" / "CLS-LOC"
    above = kaggle if kaggle.is_dir() else locate(folder, ["train", "val"])
    if above is None:
        raise unrecognized("imagenet", folder, ["train and val with a folder for each wnid"])
    found = Found("train and val by wnid", above)
    train = class_folders(above / "train")
    validation = _validation(above / "val", folder)
    for number, wnid in enumerate(sorted(train.keys() | validation.keys())):
        first = number < 500 if len(train) > 500 else number < len(train) / 2
        found.add_all(train.get(wnid, []), wnid, "train" if first else "gallery")
        found.add_all(validation.get(wnid, []), wnid, "train" if first else "query")
    return found


def _class_of(folder: str) -> str | None:
    return folder if re.fullmatch(r"n\d{8}", folder) else None


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
    for row in csv.DictReader(read_lines(answers)):
        image, boxes = row.get("ImageId"), row.get("PredictionString")
        if not image or not boxes or not boxes.split():
            raise BadData(f"{answers}: expected rows of ImageId and PredictionString")
        wnids[image] = boxes.split()[0]
    found: ClassFolders = {}
    for path in folders[folder.name]:
        if path.stem not in wnids:
            raise BadData(f"{answers}: no row for {path.name}")
        found.setdefault(wnids[path.stem], []).append(path)
    return found


imagenet = DatasetSpec(
    name="imagenet",
    title="ImageNet ILSVRC 2012",
    printed_name="ImageNet-zero-shot",
    summary="ImageNet with 500 classes to train and 500 unseen ones as query and gallery, by wnid.",
    counts={"train": (667_289, 500), "query": (25_000, 500), "gallery": (638_878, 500)},
    find=_find,
    page="https://image-net.org/download-images.php",
    markers=(("ILSVRC/Data/CLS-LOC",),),
    class_of=_class_of,
    archives=("ILSVRC",),
)
