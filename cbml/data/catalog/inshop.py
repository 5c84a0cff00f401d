"""DeepFashion In-Shop: 3,997 garments train; 3,985 others have queries and a gallery."""

from pathlib import Path

from cbml.data.discovery import (
    Found,
    class_folders,
    locate,
    open_source,
    read_lines,
    unpacked_beside,
)
from cbml.data.spec import DatasetSpec, unrecognized
from cbml.errors import BadData

_LIST = "list_eval_partition.txt"
_SPLITS = ("train", "query", "gallery")


def _find(root: Path | str) -> Found:
    """The official partition list, or `train`, `query` and `gallery` above the garments."""
    folder = open_source(root)
    beside, below = locate(folder, [_LIST]), locate(folder, [f"Eval/{_LIST}"])
    parts = locate(folder, _SPLITS)
    if below:
        found = _listed(below / "Eval" / _LIST, below)
    elif beside:
        found = _listed(beside / _LIST, beside)
    elif parts:
        found = Found("train, query and gallery, a folder for each class", parts)
        for split in _SPLITS:
            for name, paths in class_folders(parts / split).items():
                found.add_all(paths, name, split)
    else:
        raise unrecognized("inshop", folder, [_LIST, "train, query and gallery"])
    return found


def _listed(path: Path, root: Path) -> Found:
    found = Found(_LIST, root)
    # The official folder has the images in Img/img.zip; people unpack it there or beside.
    below = root / "Img" if (root / "Img").is_dir() else root
    images = root if (root / "img").is_dir() else unpacked_beside(below, "img", ["img.zip"])
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if number < 3 or not words:  # the count and the header
            continue
        if len(words) != 3 or words[2] not in _SPLITS:
            raise BadData(f"{path}: line {number} is not 'image item train|query|gallery'")
        found.add(images / words[0], words[1], words[2])
    return found


inshop = DatasetSpec(
    name="inshop",
    title="DeepFashion In-Shop Clothes Retrieval",
    printed_name="In-Shop",
    summary="In-Shop Clothes Retrieval: train, query and gallery of the official partition.",
    counts={"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)},
    find=_find,
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    markers=((_LIST,), (f"Eval/{_LIST}",)),
    archives=("In-shop Clothes Retrieval Benchmark",),
)
