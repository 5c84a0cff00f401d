"""Cars-196: the first 98 of the official classes train, the other 98 test."""

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cbml.data.catalogue.layouts import (
    class_folders,
    locate,
    locate_beside,
    opened,
    packaged,
    simple,
    unpacked_beside,
)
from cbml.data.catalogue.protocol import Found, checked_splits, unrecognised
from cbml.data.images import Splits
from cbml.data.splits import Fold
from cbml.errors import BadData

__all__ = ["cars"]


def cars(
    root: Path | str,
    *,
    validation: float | Fold = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
) -> Splits:
    """Cars-196: cars of 196 models, classes 1-98 to train, 99-196 to test.

    Reads car_ims with cars_annos.mat, cars_train and cars_test with the devkit, and copies with a
    folder for each model, with or without `train` and `test` above them.

    Args:
        root: the folder, one above it, or an archive of it.
        validation: share of the training classes to hold out, 0 for none; or a Fold.
        seed: of the choice of the held-out classes.
        allow_partial: accept a set that is not whole; recorded.
    """
    folder = opened(root)
    single = locate(folder, ["cars_annos.mat"]) or locate_beside(root, "cars_annos.mat")
    several = locate(folder, ["cars_train", "cars_test"])
    if single:
        found = _single_list(single)
    elif several:
        found = _devkit(several)
    else:
        found = _car_folders(folder)
    return checked_splits(
        "cars", found, validation=validation, seed=seed, allow_partial=allow_partial
    )


@functools.cache
def _car_names() -> tuple[str, ...]:
    return tuple(packaged("cars_classes.txt").splitlines())


def _annotations(path: Path) -> Iterator[Mapping[str, Any]]:
    from scipy.io import loadmat

    try:
        rows = loadmat(str(path), simplify_cells=True)["annotations"]
    except Exception as error:  # the reader raises nearly anything on a damaged file
        raise BadData(f"{path}: cannot be read ({' '.join(str(error).split())[:100]})") from None
    for number, row in enumerate([rows] if isinstance(rows, dict) else rows, start=1):
        if "class" not in row:
            raise BadData(
                f"{path}: has no classes; the test half needs cars_test_annos_withlabels.mat"
            )
        if not 1 <= int(row["class"]) <= 196:
            raise BadData(f"{path}: row {number} has class {row['class']}, not in 1..196")
        yield row


def _add_car(found: Found, path: Path, number: int) -> None:
    found.add(path, _car_names()[number - 1], "train" if number <= 98 else "test")


def _single_list(root: Path) -> Found:
    found = Found("cars_annos.mat", root)
    pictures = unpacked_beside(root, "car_ims", ["car_ims.tgz"])
    rows = [
        (int(row["class"]), str(row["relative_im_path"]))
        for row in _annotations(root / "cars_annos.mat")
    ]
    for number, path in sorted(rows):
        _add_car(found, pictures / path, number)
    return found


def _devkit(root: Path) -> Found:
    found = Found("devkit", root)
    rows = []
    for part, name in [
        ("cars_train", "cars_train_annos.mat"),
        ("cars_test", "cars_test_annos_withlabels.mat"),
    ]:
        folders = [root / "devkit", root / "car_devkit" / "devkit", root]
        lists = [folder / name for folder in folders if (folder / name).exists()]
        if not lists:
            raise BadData(f"cars: {name} is missing from {root}/devkit; take it from car_devkit")
        # Some copies have the pictures one folder deeper, as in cars_train/cars_train.
        deeper = root / part / part
        folder = deeper if deeper.is_dir() else root / part
        rows += [
            (int(row["class"]), str(folder / str(row["fname"]))) for row in _annotations(lists[0])
        ]
    for number, path in sorted(rows):
        _add_car(found, Path(path), number)
    return found


def _car_folders(root: Path) -> Found:
    found = Found("a folder for each class", root)
    official = {simple(name): number for number, name in enumerate(_car_names(), start=1)}
    present: dict[int, list[Path]] = {}
    for name, paths in class_folders(root).items():
        bare = re.sub(r"^\d{1,3}[._ -]+", "", name)  # some copies number the folders
        number = official.get(simple(name)) or official.get(simple(bare))
        if number is None and name.isdecimal() and 1 <= int(name) <= 196:
            number = int(name)
        if number is None:
            found.extra.append(f"{name} ({len(paths)} pictures)")
        else:
            present.setdefault(number, []).extend(paths)
    if not present:
        expected = ["cars_annos.mat", "cars_train and cars_test", "folders with the models' names"]
        raise unrecognised("cars", root, expected)
    for number, name in enumerate(_car_names(), start=1):
        if number not in present:
            found.missing.append(name)
        for path in present.get(number, []):
            _add_car(found, path, number)
    return found
