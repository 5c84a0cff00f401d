"""DeepFashion In-Shop: 3,997 garments train; of 3,985 others some pictures ask, some answer."""

from pathlib import Path

from cbml.data.catalogue.layouts import class_folders, locate, opened, unpacked_beside
from cbml.data.catalogue.protocol import COUNTS, Found, checked_splits, unrecognised
from cbml.data.images import Splits
from cbml.data.splits import Fold
from cbml.errors import BadData

__all__ = ["inshop"]

_LIST = "list_eval_partition.txt"


def inshop(
    root: Path | str,
    *,
    validation: float | Fold = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
) -> Splits:
    """In-Shop Clothes Retrieval: train, query and gallery of the official partition.

    Reads the official folder (list_eval_partition.txt, in Eval or beside img) and copies with
    `train`, `query` and `gallery` above a folder for each garment.

    Args:
        root: the folder, one above it, or an archive of it.
        validation: share of the training classes to hold out, 0 for none; or a Fold.
        seed: of the choice of the held-out classes.
        allow_partial: accept a set that is not whole; recorded.
    """
    folder = opened(root)
    beside, below = locate(folder, [_LIST]), locate(folder, [f"Eval/{_LIST}"])
    parts = locate(folder, list(COUNTS["inshop"]))
    if below:
        found = _listed(below / "Eval" / _LIST, below)
    elif beside:
        found = _listed(beside / _LIST, beside)
    elif parts:
        found = Found("train, query and gallery, a folder for each class", parts)
        for split in COUNTS["inshop"]:
            for name, paths in class_folders(parts / split).items():
                found.add_all(paths, name, split)
    else:
        raise unrecognised("inshop", folder, [_LIST, "train, query and gallery"])
    return checked_splits(
        "inshop", found, validation=validation, seed=seed, allow_partial=allow_partial
    )


def _listed(path: Path, root: Path) -> Found:
    found = Found(_LIST, root)
    # The official folder has the pictures in Img/img.zip; people unpack it there or beside.
    below = root / "Img" if (root / "Img").is_dir() else root
    pictures = root if (root / "img").is_dir() else unpacked_beside(below, "img", ["img.zip"])
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines[2:], start=3):  # below the count and the header
        words = line.split()
        if not words:
            continue
        if len(words) != 3 or words[2] not in COUNTS["inshop"]:
            raise BadData(f"{path}: line {number} is not 'picture item train|query|gallery'")
        found.add(pictures / words[0], words[1], words[2])
    return found
