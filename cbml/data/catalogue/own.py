"""What folders and tables of users have in common: the splits they state, and the ones we make."""

import warnings
from pathlib import Path
from typing import Any

from cbml.data.catalogue.protocol import Found, validation_record
from cbml.data.duplicates import same_bytes
from cbml.data.images import ROLES, ImageSet, Splits
from cbml.data.splits import Fold, described, halves, paired, split_notes, with_validation
from cbml.errors import BadData

__all__ = ["SPLIT_NAMES", "made_splits", "stated_splits", "unlabelled"]

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
    "query": "query",
    "gallery": "gallery",
}
_SHOWN = 5


def unlabelled(name: str, source: Path, layout: str, paths: tuple[Path, ...]) -> Splits:
    """Pictures of which nothing is known: all of them to train.

    Args:
        name: "folder" or "table".
        source: the folder or table.
        layout: how it was recognised.
        paths: the files.
    """
    splits = Splits(ImageSet(paths), ImageSet(()), record=_record(name, source, layout))
    splits.record["counts"] = described(splits)
    return splits


def made_splits(
    name: str, found: Found, *, test: float, validation: float | Fold, seed: int
) -> Splits:
    """Splits by class of a set that states none.

    Args:
        name: "folder" or "table".
        found: all pictures as "train".
        test: share of the classes to test on.
        validation: share of the other classes to hold out, or a fold.
        seed: of the choice.
    """
    images = found.images(("train",))
    train, held, tested = halves(images, test=test, validation=validation, seed=seed)
    record = _record(name, found.root, found.layout)
    record |= {"test": test, "validation": validation_record(validation), "seed": seed}
    splits = Splits(train, held, tested, record=record)
    record["notes"] = split_notes(splits, test=test, validation=validation)
    return _reported(splits)


def stated_splits(name: str, found: Found, *, validation: float | Fold, seed: int) -> Splits:
    """The splits that a set states; validation classes are held out where it states none.

    Args:
        name: "folder" or "table".
        found: the pictures with their splits.
        validation: share of the training classes to hold out, or a fold.
        seed: of the choice.
    """
    stated = set(found.splits)
    if "train" not in stated:
        raise BadData(f"{found.root}: states {sorted(stated)} but no train; add it")
    if len(stated & set(ROLES)) == 1:
        raise BadData(f"{found.root}: query and gallery need each other; only one is stated")
    train = found.images(("train",))
    record = _record(name, found.root, found.layout)
    if "validation" in stated:
        held = found.images(("validation",))
        record["validation"] = "stated"
    else:
        train, held = with_validation(train, validation=validation, seed=seed)
        record |= {"validation": validation_record(validation), "seed": seed}
    query = gallery = None
    if stated & set(ROLES):
        query, gallery = paired(found.images(ROLES))
    test = found.images(("test",)) if "test" in stated else None
    splits = Splits(train, held, test, query, gallery, record)
    record["notes"] = split_notes(splits, test=0, validation=validation)
    return _reported(splits)


def _record(name: str, source: Path, layout: str) -> dict[str, Any]:
    return {"set": name, "root": str(source), "layout": layout, "allow_partial": False}


def _reported(splits: Splits) -> Splits:
    """The splits, with counts and the files that stand on both sides in their record."""
    splits.record["counts"] = described(splits)
    learned = splits.train.paths + splits.validation.paths
    asked = tuple(
        path
        for images in (splits.test, splits.query, splits.gallery)
        if images is not None
        for path in images.paths
    )
    both = learned + asked
    across = [
        [str(both[place]) for place in group]
        for group in same_bytes(both)
        if group[0] < len(learned) <= group[-1]
    ]
    splits.record["duplicates_across"] = {"groups": len(across), "examples": across[:_SHOWN]}
    if across:
        warnings.warn(
            f"{splits.record['root']}: {len(across)} files stand both in train and in test, such "
            f"as {across[0][0]} and {across[0][-1]}; scores will flatter",
            stacklevel=4,
        )
    return splits
