"""Every dataset by its name: calling one gives train, validation and test.

The benchmarks are split by their protocols and checked against the published counts; `folder` and
`table` take your own images.
"""

import difflib
import os
from pathlib import Path

from cbml.data.catalog.cars import cars
from cbml.data.catalog.cub import cub
from cbml.data.catalog.emoji import emoji
from cbml.data.catalog.imagenet import imagenet
from cbml.data.catalog.inshop import inshop
from cbml.data.catalog.sop import sop
from cbml.data.discovery import class_folders, open_source
from cbml.data.folder import Labels, SplitBy, folder
from cbml.data.image_dataset import Splits
from cbml.data.spec import DatasetSpec
from cbml.data.table import TABLE_SUFFIXES, find_table, table
from cbml.errors import BadData, nearest

__all__ = [
    "DATASETS",
    "cars",
    "cub",
    "emoji",
    "find_dataset",
    "folder",
    "imagenet",
    "inshop",
    "load",
    "recognize",
    "sop",
    "table",
]

DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec for spec in (cub, cars, sop, inshop, imagenet, emoji)
}


def find_dataset(name: str) -> DatasetSpec:
    """The benchmark of a name; raises BadData with the nearest known one.

    Args:
        name: A key of `DATASETS`.
    """
    if name not in DATASETS:
        raise BadData(f"{name}: no such dataset; {nearest(name, DATASETS)}")
    return DATASETS[name]


def recognize(source: Path | str) -> str:
    """The name of the dataset that a path most likely is; "folder" if none is known.

    Args:
        source: A folder, an archive, a table, or a dataset's name.
    """
    if _is_name(source):
        return str(source)
    path = Path(source)
    near = difflib.get_close_matches(str(source).lower(), DATASETS, n=1)
    if near and not os.path.lexists(path):
        raise BadData(f"{source}: no such folder or archive; did you mean {near[0]!r}?")
    if path.suffix.lower() in TABLE_SUFFIXES:
        return "table"
    root = open_source(path)
    for name, spec in DATASETS.items():
        if spec.is_marked(root):
            return name
    shared = _official_classes(root)
    return next((name for name in shared if shared[name] == DATASETS[name].num_classes), "folder")


def load(
    source: Path | str,
    name: str | None = None,
    *,
    validation: float = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
    labels: Labels = "folders",
    label_from: str | None = None,
    split: SplitBy = "stated",
    path_column: str | None = None,
    label_column: str | None = None,
) -> Splits:
    """The splits of whatever a path holds, or of a dataset known by name.

    Args:
        source: A folder, an archive, a table, or a dataset's name, such as "emoji" or "cub"; a name
            is looked for where CBML_DATA says and where `cbml data get` puts it.
        name: The dataset that it is; recognized when None.
        validation: Share of the training classes to hold out; 0 for none.
        seed: Random seed of the choice of held-out classes.
        allow_partial: Accept a dataset that is not whole; recorded.
        labels: Where the classes of a folder are stated: "folders", or "names" of the files.
        label_from: Pattern of the file names of a folder, such as "{label}_{n}", or "auto".
        split: "stated" takes the splits of a folder or table; "classes" keeps classes apart.
        path_column: Name of a table's column of the files.
        label_column: Name of a table's column of the classes.
    """
    name = name or recognize(source)
    if name == "folder":
        splits = folder(
            source,
            validation=validation,
            seed=seed,
            labels=labels,
            label_from=label_from,
            split=split,
        )
        here = open_source(source)
        if (labeled := find_table(here)) is not None:
            splits.record["table"] = str(labeled[0])
            splits.record["notes"].append(
                f"{labeled[0].name} has labels for {labeled[1]:,} of these images; to use them, "
                f"give {labeled[0]} instead of the folder"
            )
        splits.record["notes"] += _resembles(here)
        return splits
    if name == "table":
        return table(
            source,
            validation=validation,
            seed=seed,
            allow_partial=allow_partial,
            split=split,
            path_column=path_column,
            label_column=label_column,
        )
    if split == "classes" or labels == "names" or label_from is not None:
        raise BadData(f"{name}: has its own protocol; --as folder reads it as a plain folder")
    root = None if _is_name(source) else source
    return find_dataset(name)(root, validation=validation, seed=seed, allow_partial=allow_partial)


def _official_classes(root: Path) -> dict[str, int]:
    """Benchmark -> how many of its classes the folders are named after."""
    names = list(class_folders(root))
    counts = {
        name: len({spec.class_of(folder) for folder in names} - {None})
        for name, spec in DATASETS.items()
        if spec.class_of is not None
    }
    return {name: count for name, count in counts.items() if 2 * count >= len(names)}


def _resembles(root: Path) -> list[str]:
    """The benchmarks that the folder may be a part of or is built like, a sentence each."""
    parts = {name: count for name, count in _official_classes(root).items() if count}
    notes = [
        f"{count} of {DATASETS[name].num_classes:,} classes of {DATASETS[name].title} are here; "
        f"--as {name} --allow-partial splits them by its protocol"
        for name, count in parts.items()
    ]
    others = [spec.resemblance(root) for name, spec in DATASETS.items() if name not in parts]
    return notes + [note for note in others if note is not None]


def _is_name(source: Path | str) -> bool:
    """Whether it is a dataset's name; a folder that is called so comes first."""
    return str(source) in DATASETS and not os.path.exists(source)
