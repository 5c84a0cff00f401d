"""Anybody's folder of pictures."""

from pathlib import Path

from cbml.data.catalogue.layouts import no_pictures, opened, picture_folders
from cbml.data.catalogue.own import SPLIT_NAMES, made_splits, stated_splits, unlabelled
from cbml.data.catalogue.protocol import Found
from cbml.data.images import Splits
from cbml.data.splits import Fold
from cbml.errors import BadData

__all__ = ["folder"]


def folder(
    path: Path | str, *, test: float = 0.5, validation: float | Fold = 0.2, seed: int = 0
) -> Splits:
    """A folder for each class, or a flat folder without labels.

    A class is a folder that holds pictures itself; its name is its path below `path`. Half of the
    classes, chosen with the seed, are kept for the test, and validation classes are held out of
    the other half, unless folders named train, validation (val), test, query or gallery stand above
    the classes: then these are the splits. Files with the same bytes on both sides of the split
    are warned of and recorded.

    Args:
        path: the folder, or an archive of it.
        test: share of the classes to test on; 0 for none.
        validation: share of the other classes to hold out, 0 for none; or a Fold.
        seed: of the choice of classes.
    """
    root = opened(path)
    folders = dict(picture_folders(root))
    if not folders:
        raise no_pictures(root)
    if set(folders) == {root}:
        return unlabelled("folder", root, "a flat folder", tuple(folders[root]))
    if root in folders:
        raise BadData(
            f"{root}: holds {len(folders[root])} pictures beside class folders, such as "
            f"{folders[root][0].name}; put every picture into a class folder, or learn "
            "without labels: --labels none"
        )
    root = _inner(root, folders)
    names = {below.relative_to(root).parts[0] for below in folders}
    if len(names) > 1 and all(name.casefold() in SPLIT_NAMES for name in names):
        return stated_splits("folder", _stated(root, folders), validation=validation, seed=seed)
    found = Found("a folder for each class", root)
    for below, paths in folders.items():
        found.add_all(paths, below.relative_to(root).as_posix(), "train")
    return made_splits("folder", found, test=test, validation=validation, seed=seed)


def _inner(root: Path, folders: dict[Path, list[Path]]) -> Path:
    """Below folders that hold nothing but one folder, as archives have them on top."""
    while True:
        names = {below.relative_to(root).parts[0] for below in folders}
        if len(names) > 1 or root / min(names) in folders:
            return root
        root = root / min(names)


def _stated(root: Path, folders: dict[Path, list[Path]]) -> Found:
    found = Found("splits, with a folder for each class", root)
    for below, paths in folders.items():
        split, *name = below.relative_to(root).parts
        if not name:
            raise BadData(f"{below}: holds pictures without class folders, such as {paths[0].name}")
        found.add_all(paths, "/".join(name), SPLIT_NAMES[split.casefold()])
    return found
