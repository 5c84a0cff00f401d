"""Stanford Online Products: 11,318 products train, 11,316 others test."""

from pathlib import Path

from cbml.data.catalogue.layouts import class_folders, locate, opened, read_rows
from cbml.data.catalogue.protocol import Found, checked_splits, unrecognised
from cbml.data.images import Splits
from cbml.data.splits import Fold
from cbml.errors import BadData

__all__ = ["sop"]

_TRAIN_CLASSES = 11_318
_LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}


def sop(
    root: Path | str,
    *,
    validation: float | Fold = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
) -> Splits:
    """Stanford Online Products: products 1-11,318 to train, 11,319-22,634 to test.

    Reads the official folder (Ebay_train.txt, Ebay_test.txt), and copies with a folder for each
    product: below `train` and `test`, or named by the official numbers.

    Args:
        root: the folder, one above it, or the archive Stanford_Online_Products.zip.
        validation: share of the training classes to hold out, 0 for none; or a Fold.
        seed: of the choice of the held-out classes.
        allow_partial: accept a set that is not whole; recorded.
    """
    folder = opened(root)
    listed = locate(folder, list(_LISTS.values()))
    halves = locate(folder, ["train", "test"])
    if listed:
        found = _listed(listed)
    elif halves:
        found = _halves(halves)
    else:
        found = _numbered(folder)
    return checked_splits(
        "sop", found, validation=validation, seed=seed, allow_partial=allow_partial
    )


def _listed(root: Path) -> Found:
    found = Found("Ebay_train.txt and Ebay_test.txt", root)
    for split, name in _LISTS.items():
        for image, product, _, path in read_rows(root / name, 4):
            if image == "image_id":  # the header
                continue
            if not product.isdecimal():
                raise BadData(f"{root / name}: {product!r} is not a class number")
            found.add(root / path, product, split)
    return found


def _halves(root: Path) -> Found:
    found = Found("train and test, a folder for each class", root)
    for split in _LISTS:
        for name, paths in class_folders(root / split).items():
            found.add_all(paths, name, split)
    twice = {
        name for name, split in zip(found.classes, found.splits, strict=True) if split == "train"
    }
    twice &= {
        name for name, split in zip(found.classes, found.splits, strict=True) if split == "test"
    }
    if twice:
        raise BadData(
            f"sop: {root} has {len(twice):,} classes both in train and in test, such as "
            f"{min(twice)}; the protocol keeps them apart: use Ebay_train.txt and Ebay_test.txt"
        )
    return found


def _numbered(root: Path) -> Found:
    found = Found("a folder for each class, by number", root)
    folders = class_folders(root)
    if not any(name.isdecimal() and 1 <= int(name) <= 22_634 for name in folders):
        raise unrecognised(
            "sop",
            root,
            ["Ebay_train.txt and Ebay_test.txt", "train and test", "class folders 1 to 22634"],
        )
    for name, paths in sorted(folders.items(), key=lambda item: item[0].zfill(12)):
        if name.isdecimal() and 1 <= int(name) <= 22_634:
            split = "train" if int(name) <= _TRAIN_CLASSES else "test"
            found.add_all(paths, str(int(name)), split)
        else:
            found.extra.append(f"{name} ({len(paths)} pictures)")
    return found
