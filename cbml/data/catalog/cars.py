"""Cars-196: the first 98 of the official classes train, the other 98 test."""

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cbml.data.discovery import (
    Found,
    class_folders,
    locate,
    locate_beside,
    open_source,
    packaged_text,
    simplify,
    unpacked_beside,
)
from cbml.data.downloads import Download
from cbml.data.spec import DatasetSpec, unrecognized
from cbml.errors import BadData

_ADDRESS = "http://ai.stanford.edu/~jkrause/car196/"


def _find(root: Path | str) -> Found:
    """The layouts with cars_annos.mat or the devkit, or a folder for each model."""
    folder = open_source(root)
    single = locate(folder, ["cars_annos.mat"]) or locate_beside(root, "cars_annos.mat")
    several = locate(folder, ["cars_train", "cars_test"])
    if single:
        return _single_list(single)
    return _devkit(several) if several else _car_folders(folder)


@functools.cache
def _car_names() -> tuple[str, ...]:
    return tuple(packaged_text("cars_classes.txt").splitlines())


@functools.cache
def _spellings() -> dict[str, int]:
    """Numbers of the official classes by the letters and digits of their names."""
    return {simplify(name): number for number, name in enumerate(_car_names(), start=1)}


def _number_of(folder: str) -> int | None:
    bare = re.sub(r"^\d{1,3}[._ -]+", "", folder)  # some copies number the folders
    return _spellings().get(simplify(folder)) or _spellings().get(simplify(bare))


def _class_of(folder: str) -> str | None:
    number = _number_of(folder)
    return None if number is None else _car_names()[number - 1]


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
    images = unpacked_beside(root, "car_ims", ["car_ims.tgz"])
    rows = [
        (int(row["class"]), str(row["relative_im_path"]))
        for row in _annotations(root / "cars_annos.mat")
    ]
    for number, path in sorted(rows):
        _add_car(found, images / path, number)
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
        # Some copies have the images one folder deeper, as in cars_train/cars_train.
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
    present: dict[int, list[Path]] = {}
    for name, paths in class_folders(root).items():
        number = _number_of(name)
        if number is None and name.isdecimal() and 1 <= int(name) <= 196:
            number = int(name)
        if number is None:
            found.extra.append(f"{name} ({len(paths)} images)")
        else:
            present.setdefault(number, []).extend(paths)
    if not present:
        expected = ["cars_annos.mat", "cars_train and cars_test", "folders with the models' names"]
        raise unrecognized("cars", root, expected)
    for number, name in enumerate(_car_names(), start=1):
        if number not in present:
            found.missing.append(name)
        for path in present.get(number, []):
            _add_car(found, path, number)
    return found


cars = DatasetSpec(
    name="cars",
    title="Stanford Cars (Cars-196)",
    printed_name="Cars",
    summary="Cars-196: cars of 196 models, classes 1-98 to train, 99-196 to test.",
    counts={"train": (8_054, 98), "test": (8_131, 98)},
    find=_find,
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    markers=(("cars_annos.mat",), ("cars_train", "cars_test")),
    class_of=_class_of,
    archives=("stanford_cars", "car_ims.tgz"),
    downloads=(
        Download(f"{_ADDRESS}car_ims.tgz", "md5:d5c8f0aa497503f355e17dc7886c3f14"),
        Download(f"{_ADDRESS}cars_annos.mat", "md5:b407c6086d669747186bd1d764ff9dbc"),
    ),
)
