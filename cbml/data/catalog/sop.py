"""Stanford Online Products: 11,318 products train, 11,316 others test."""

from pathlib import Path

from cbml.data.discovery import Found, class_folders, locate, open_source, read_rows
from cbml.data.downloads import Download
from cbml.data.spec import DatasetSpec, unrecognized
from cbml.errors import BadData

_TRAIN_CLASSES = 11_318
_LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}


def _find(root: Path | str) -> Found:
    """The official lists Ebay_*.txt, or a folder for each product, in splits or by number."""
    folder = open_source(root)
    listed = locate(folder, list(_LISTS.values()))
    halves = locate(folder, ["train", "test"])
    if listed:
        return _listed(listed)
    return _halves(halves) if halves else _numbered(folder)


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
        absent = [name for name in _LISTS.values() if locate(root, [name]) is None]
        if len(absent) == 1:
            raise BadData(f"sop: {root} lacks {absent[0]}; take it from the official archive")
        raise unrecognized(
            "sop",
            root,
            ["Ebay_train.txt and Ebay_test.txt", "train and test", "class folders 1 to 22634"],
        )
    for name, paths in sorted(folders.items(), key=lambda item: item[0].zfill(12)):
        if name.isdecimal() and 1 <= int(name) <= 22_634:
            split = "train" if int(name) <= _TRAIN_CLASSES else "test"
            found.add_all(paths, str(int(name)), split)
        else:
            found.extra.append(f"{name} ({len(paths)} images)")
    return found


sop = DatasetSpec(
    name="sop",
    title="Stanford Online Products",
    printed_name="SOP",
    summary="Stanford Online Products: products 1-11,318 to train, 11,319-22,634 to test.",
    counts={"train": (59_551, 11_318), "test": (60_502, 11_316)},
    find=_find,
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
    markers=(("Ebay_train.txt",), ("Ebay_test.txt",)),
    archives=("Stanford_Online_Products", "Stanford_Online_Products.zip"),
    downloads=(
        Download(
            "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            "md5:7f73d41a2f44250d4779881525aea32e",
        ),
    ),
)
