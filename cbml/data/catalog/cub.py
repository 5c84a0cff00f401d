"""CUB-200-2011: the first hundred of the official classes train, the second hundred test."""

import csv
import functools
from pathlib import Path

from cbml.data.discovery import (
    Found,
    class_folders,
    locate,
    open_source,
    packaged_text,
    read_lines,
    read_rows,
    simplify,
)
from cbml.data.downloads import Download
from cbml.data.spec import DatasetSpec, unrecognized
from cbml.errors import BadData


def _find(root: Path | str) -> Found:
    """The official folder with images.txt, or a folder for each class, in splits or not."""
    folder = open_source(root)
    listed = locate(folder, ["images.txt", "image_class_labels.txt"])
    return _listed_birds(listed) if listed else _bird_folders(folder)


@functools.cache
def _bird_classes() -> dict[str, int]:
    """Official class name -> how many images it has, in the official order."""
    rows = csv.DictReader(packaged_text("cub_classes.csv").splitlines())
    return {row["name"]: int(row["images"]) for row in rows}


@functools.cache
def _spellings() -> dict[str, str]:
    """Official names by their letters and digits, with the number in front and without."""
    official = _bird_classes()
    bare = {simplify(name.partition(".")[2]): name for name in official}
    return {simplify(name): name for name in official} | bare


def _class_of(folder: str) -> str | None:
    return _spellings().get(simplify(folder))


def _lists_birds(root: Path) -> bool:
    """Whether most lines of images.txt name official classes: NABirds has files of these names."""
    try:
        lines = [line for line in read_lines(root / "images.txt") if line.strip()]
    except BadData:  # whoever reads it is told why it cannot be read
        return True
    folders = [Path(line.split(maxsplit=1)[-1]).parent.name for line in lines]
    known = sum(_class_of(folder) is not None for folder in folders)
    return known > 0 and 2 * known >= len(folders)


def _listed_birds(root: Path) -> Found:
    found = Found("images.txt", root)
    names = list(_bird_classes())
    labels = {
        number: int(label) if label.isdecimal() else 0
        for number, label in read_rows(root / "image_class_labels.txt", 2)
    }
    rows = []
    for number, path in read_rows(root / "images.txt", 2):
        if not 1 <= labels.get(number, 0) <= len(names):
            raise BadData(
                f"{root}/image_class_labels.txt: no class from 1 to {len(names)} for image "
                f"{number}; take the file from the official archive"
            )
        rows.append((labels[number], path))
    for label, path in sorted(rows):
        found.add(root / "images" / path, names[label - 1], "train" if label <= 100 else "test")
    return found


def _bird_folders(root: Path) -> Found:
    found = Found("a folder for each class", root)
    official = _bird_classes()
    present = {}
    for name, paths in class_folders(root).items():
        known = _class_of(name)
        if known:
            present[known] = paths
        else:
            found.extra.append(f"{name} ({len(paths)} images)")
    if not present:
        raise unrecognized(
            "cub", root, ["images.txt", "class folders as 001.Black_footed_Albatross"]
        )
    for number, (name, expected) in enumerate(official.items(), start=1):
        paths = present.get(name, [])
        found.add_all(paths, name, "train" if number <= 100 else "test")
        if len(paths) < expected:
            found.missing.append(f"{name} ({expected - len(paths)} of {expected} images)")
            found.short[name] = expected - len(paths)
        elif len(paths) > expected:
            found.extra.append(f"{name} ({len(paths) - expected} more than {expected} images)")
    return found


cub = DatasetSpec(
    name="cub",
    title="Caltech-UCSD Birds-200-2011",
    printed_name="CUB",
    summary="CUB-200-2011: birds of 200 species, classes 1-100 to train, 101-200 to test.",
    counts={"train": (5_864, 100), "test": (5_924, 100)},
    find=_find,
    page="https://data.caltech.edu/records/65de6-vp158",
    markers=(("images.txt", "image_class_labels.txt"),),
    confirms=_lists_birds,
    class_of=_class_of,
    archives=("CUB_200_2011", "CUB_200_2011.tgz"),
    downloads=(
        Download(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            "sha256:0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
            1_150_585_339,
        ),
    ),
)
