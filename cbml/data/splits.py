"""Which images train, which choose the model, which report; seeded and recorded.

Classes are kept apart wherever we choose, because a model that is to find new things must be judged
on classes it has not seen. Splits that a folder or table states are taken as they are; where they
share classes, the record says so.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.data.discovery import Found, same_bytes
from cbml.data.image_dataset import ROLES, ImageDataset, Splits
from cbml.errors import BadData
from cbml.program import command

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "query": "query",
    "gallery": "gallery",
}
_FEWEST_TO_CHOOSE = 4  # held-out classes, where there are three times as many
_FEWEST_TO_TEST = 4
_FEWEST_OF_A_CLASS = 4  # two images to learn from and two to find each other
_FEW_CLASSES, _FEW_IMAGES = 10, 100  # below either, training may teach less than it forgets
_SHOWN = 5


def hold_out(
    sizes: NDArray[np.int64], *, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels to train on and labels to hold out, each sorted.

    The classes are shuffled with the seed and the first of them are taken. Classes of one image are
    passed over, as nothing can be found for it. At least a third of the classes are held out, up to
    four, since fewer hardly tell two models apart and three are needed for match probabilities; and
    at least two, since within one alone every result is relevant. Where that would leave fewer than
    four to train on, or where two cannot be had, none are.
    """
    classes = len(sizes)
    shuffled = np.random.default_rng(seed).permutation(classes)
    usable = shuffled[np.asarray(sizes)[shuffled] > 1]
    if not 0 <= share < 1:
        raise BadData(f"validation={share}: a share of classes in [0, 1)")
    count = round(share * classes)
    if share and count < (fewest := min(_FEWEST_TO_CHOOSE, classes // 3)):
        count = fewest
    if count < 2:
        count = 0
    held = usable[:count] if len(usable) > 1 else usable[:0]
    if classes < 4 and len(held) > classes - 2:
        held = held[:0]
    elif len(held) > classes - 2:
        raise BadData(
            f"validation={share}: of {classes} training classes fewer than two would be left to "
            "train; hold out a smaller share"
        )
    return np.setdiff1d(np.arange(classes), held), np.sort(held)


def hold_out_classes(
    train: ImageDataset, *, share: float, seed: int
) -> tuple[ImageDataset, ImageDataset]:
    """The training images without the held-out classes, and the images of those classes."""
    if train.labels is None:
        return train, ImageDataset(())
    kept, held = hold_out(train.class_sizes(), share=share, seed=seed)
    return train.of_classes(kept), train.of_classes(held)


def hold_out_images(
    train: ImageDataset, *, share: float, seed: int
) -> tuple[ImageDataset, ImageDataset]:
    """The training images without the held-out ones, and a share of the images of each class.

    Where the test is on known classes, so is the choice of the model. A class gives at least two
    images, which can find each other, and keeps at least two.
    """
    if not 0 <= share < 1:
        raise BadData(f"validation={share}: a share of the images in [0, 1)")
    labels, sizes = train.known_labels, train.class_sizes()
    counts = np.clip(np.rint(share * sizes), 2, np.maximum(sizes - 2, 2))  # (C,)
    counts = np.where((sizes >= _FEWEST_OF_A_CLASS) & (share > 0), counts, 0)
    shuffled = np.random.default_rng(seed).permutation(len(train))
    grouped = shuffled[np.argsort(labels[shuffled], kind="stable")]
    rank = np.arange(len(train)) - (np.cumsum(sizes) - sizes)[labels[grouped]]  # within its class
    chosen = rank < counts[labels[grouped]]
    return train.subset(np.sort(grouped[~chosen])), train.subset(np.sort(grouped[chosen]))


def class_splits(name: str, found: Found, *, test: float, validation: float, seed: int) -> Splits:
    """Splits by class of all images that were found, no class in two of them.

    Where there are fewer than four classes none are kept for the test.
    """
    if not 0 <= test < 1:
        raise BadData(f"test={test}: a share of classes in [0, 1)")
    images = found.images(tuple(set(found.splits)))
    classes, tested = len(images.class_names), None
    if test and classes >= _FEWEST_TO_TEST:
        shuffled = np.random.default_rng(seed).permutation(classes)
        count = min(max(round(test * classes), 1), classes - 1)
        tested = images.of_classes(shuffled[:count])
        images = images.of_classes(shuffled[count:])
    train, held = hold_out_classes(images, share=validation, seed=seed)
    record = _record(name, found.root, found.layout)
    record |= {"test": test, "validation": validation, "seed": seed}
    splits = Splits(train, held, tested, record=record)
    record["notes"] = split_notes(splits, test=test, validation=validation)
    return _reported(splits)


def stated_splits(name: str, found: Found, *, validation: float, seed: int) -> Splits:
    """The splits that a folder or table states; validation is held out where it states none."""
    stated = set(found.splits)
    if "train" not in stated:
        named = ", ".join(sorted(stated))
        raise BadData(
            f"{found.root}: has splits ({named}) but no train; add it, or use --split classes"
        )
    if len(stated & set(ROLES)) == 1:
        raise BadData(f"{found.root}: query and gallery need each other; only one is stated")
    train = found.images(("train",))
    test = found.images(("test",)) if "test" in stated else None
    query, gallery = pair_roles(found.images(ROLES)) if stated & set(ROLES) else (None, None)
    held = found.images(("validation",)) if "validation" in stated else None
    # Without a test the scores are those of the held-out images.
    scored = "test" if test or query else "validation"
    searched = {
        name
        for images in ((test, query) if scored == "test" else (held,))
        if images
        for name in images.class_names
    }
    shared = len(searched & set(train.class_names))
    record = _record(name, found.root, found.layout)
    if held is not None:
        record["validation"] = "stated"
    else:
        choose = hold_out_images if 2 * shared > len(searched) else hold_out_classes
        train, held = choose(train, share=validation, seed=seed)
        record |= {"validation": validation, "seed": seed}
    splits = Splits(train, held, test, query, gallery, record)
    record["notes"] = split_notes(splits, test=0, validation=validation)
    if shared:
        record |= {"shared_classes": shared, "scores_for": "new images of known classes"}
        others = sorted(searched - set(train.class_names))
        named = f", all but {', '.join(others)}" if 0 < len(others) <= _SHOWN else ""
        record["notes"].append(
            f"{shared:,} of {len(searched):,} {scored} classes are also in train{named}: scores "
            "are for new images of known classes; --split classes keeps the classes apart instead"
        )
    return _reported(splits)


def unlabeled_splits(name: str, source: Path, layout: str, paths: Sequence[Path]) -> Splits:
    """The splits of images without labels: all of them are training images.

    Args:
        name: Kind of source, "folder" or "table".
        source: The folder or table.
        layout: How the source was recognized.
        paths: The image files.
    """
    record = _record(name, source, layout)
    splits = Splits(ImageDataset(tuple(paths)), ImageDataset(()), record=record)
    record["counts"] = count_images(splits)
    return splits


def split_notes(splits: Splits, *, test: float, validation: float) -> list[str]:
    """A sentence for each part that was wanted and could not be had, for run records."""
    notes = []
    classes = len(splits.train.class_names)
    parts = splits.parts().values()
    whole = len({name for part in parts for name in part.class_names})
    images = sum(len(part) for part in parts)
    if (
        splits.train.labels is not None
        and validation
        and (whole < _FEW_CLASSES or images < _FEW_IMAGES)
    ):
        search = command("index", "efficientnet_lite0", splits.record["root"], "--out", "gallery")
        notes.append(
            f"{images:,} images of {whole} classes are few to learn from; a pretrained network may "
            f"search them just as well:  {search}"
        )
    if test and splits.test is None:
        notes.append(f"{classes} classes are too few to keep some for the test (4 are needed)")
    if validation and not len(splits.validation):
        pairs = int((splits.train.class_sizes() > 1).sum())
        notes.append(
            f"{classes} training classes, {pairs} with two images or more, are too few to hold "
            "some out for validation: the last model is kept"
        )
    return notes


def pair_roles(images: ImageDataset) -> tuple[ImageDataset, ImageDataset]:
    """The queries and the gallery of a dataset with roles; their labels mean the same classes."""
    roles = np.array(images.roles)

    def part(role: str) -> ImageDataset:
        indices = np.flatnonzero(roles == role).tolist()
        paths = tuple(images.paths[index] for index in indices)
        return ImageDataset(
            paths, images.known_labels[indices], images.class_names, (role,) * len(paths)
        )

    return part("query"), part("gallery")


def count_images(splits: Splits) -> dict[str, Any]:
    """Images and classes of every split, as stored in run records."""
    return {
        name: {
            "images": len(images),
            "classes": 0 if images.labels is None else len(set(images.labels.tolist())),
        }
        for name, images in splits.parts().items()
    }


def _record(name: str, source: Path, layout: str) -> dict[str, Any]:
    return {
        "dataset": name,
        "root": str(source),
        "layout": layout,
        "allow_partial": False,
        "shared_classes": 0,
        "scores_for": "unseen classes",
        "notes": [],
    }


def _reported(splits: Splits) -> Splits:
    """The splits, with counts and the files that are on both sides in their record."""
    splits.record["counts"] = count_images(splits)
    learned = splits.train.paths + splits.validation.paths
    searched = tuple(
        path
        for images in (splits.test, splits.query, splits.gallery)
        if images is not None
        for path in images.paths
    )
    both = learned + searched
    across = [
        [str(both[index]) for index in group]
        for group in same_bytes(both)
        if group[0] < len(learned) <= group[-1]
    ]
    splits.record["duplicates_across"] = {"groups": len(across), "examples": across[:_SHOWN]}
    if across:
        files = "1 file is" if len(across) == 1 else f"{len(across)} files are"
        warnings.warn(
            f"{splits.record['root']}: {files} both in train and in test, such as "
            f"{across[0][0]} and {across[0][-1]}; test scores will be too good",
            stacklevel=4,
        )
    return splits
