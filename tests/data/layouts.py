"""The official layouts and the copies people have, with empty files of the right names."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy.io import savemat

from cbml.data.discovery import packaged_text

CAR_NAMES = packaged_text("cars_classes.txt").splitlines()
CUB_CLASSES = {
    name: int(images)
    for name, images in (
        row.split(",") for row in packaged_text("cub_classes.csv").splitlines()[1:]
    )
}


def touch(paths: Iterable[Path]) -> None:
    made: set[str] = set()
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in made:
            os.makedirs(folder, exist_ok=True)
            made.add(folder)
        os.mknod(os.path.join(folder, name))  # one call; Path.touch takes three


def spread(images: int, classes: int) -> list[int]:
    """So many images over so many classes, as evenly as it goes."""
    return [images // classes + (number < images % classes) for number in range(classes)]


CAR_SIZES = spread(8_054, 98) + spread(8_131, 98)
SOP_SIZES = spread(59_551, 11_318) + spread(60_502, 11_316)


def cub_official(root: Path, sizes: dict[str, int] | None = None) -> Path:
    sizes = CUB_CLASSES if sizes is None else sizes
    rows = [
        (f"{name}/{name[4:]}_{number:04}.jpg", label)
        for label, (name, count) in enumerate(sizes.items(), start=1)
        for number in range(count)
    ]
    root.mkdir(parents=True)
    listed = [f"{number} {path}\n" for number, (path, _) in enumerate(rows, start=1)]
    labels = [f"{number} {label}\n" for number, (_, label) in enumerate(rows, start=1)]
    (root / "images.txt").write_text("".join(listed))
    (root / "image_class_labels.txt").write_text("".join(labels))
    touch(root / "images" / path for path, _ in rows)
    return root


def cub_folders(root: Path, *, numbered: bool = True, above: tuple[str, ...] = ("",)) -> Path:
    """A folder for each class; with two names `above`, its images are shared among them."""
    touch(
        root / above[number % len(above)] / (name if numbered else name[4:]) / f"{number}.jpg"
        for name, count in CUB_CLASSES.items()
        for number in range(count)
    )
    return root


def annotations(rows: list[dict[str, object]]) -> np.ndarray:
    """A MATLAB struct array, as the devkit has it."""
    kinds = [(name, object) for name in rows[0]]
    table = np.empty((1, len(rows)), dtype=kinds)
    for number, row in enumerate(rows):
        table[0, number] = tuple(row.values())
    return table


def car_rows(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Number of the image and class, in an order that is not the order of the classes."""
    labels = [label for label, size in enumerate(sizes, start=1) for _ in range(size)]
    mixed = np.random.default_rng(0).permutation(labels)
    return list(enumerate(mixed.tolist(), start=1))


def cars_single(root: Path, sizes: Sequence[int] = CAR_SIZES) -> Path:
    rows = [
        {"relative_im_path": f"car_ims/{number:06}.jpg", "class": label, "test": number % 2}
        for number, label in car_rows(sizes)
    ]
    root.mkdir(parents=True)
    names = np.array(CAR_NAMES, dtype=object)[None]
    savemat(root / "cars_annos.mat", {"annotations": annotations(rows), "class_names": names})
    touch(root / str(row["relative_im_path"]) for row in rows)
    return root


def cars_devkit(root: Path, sizes: Sequence[int] = CAR_SIZES, *, deeper: bool = False) -> Path:
    rows = car_rows(sizes)
    half = len(rows) // 2
    (root / "devkit").mkdir(parents=True)
    for part, chosen, name in [
        ("cars_train", rows[:half], "devkit/cars_train_annos.mat"),
        ("cars_test", rows[half:], "cars_test_annos_withlabels.mat"),
    ]:
        listed = [
            {"bbox_x1": 1, "class": label, "fname": f"{number:05}.jpg"}
            for number, (_, label) in enumerate(chosen, start=1)
        ]
        savemat(root / name, {"annotations": annotations(listed)})
        folder = root / part / part if deeper else root / part
        touch(folder / str(row["fname"]) for row in listed)
    return root


def car_folders(
    root: Path,
    sizes: Sequence[int] = CAR_SIZES,
    *,
    slash: str = "-",
    above: tuple[str, ...] = ("",),
) -> Path:
    touch(
        root / above[number % len(above)] / name.replace("/", slash) / f"{number:05}.jpg"
        for name, size in zip(CAR_NAMES, sizes, strict=True)
        for number in range(size)
    )
    return root


def sop_official(root: Path) -> Path:
    root.mkdir(parents=True)
    image = 0
    for name, first, last in [("train", 0, 11_318), ("test", 11_318, 22_634)]:
        lines = ["image_id class_id super_class_id path\n"]
        paths = []
        for label in range(first, last):
            for number in range(SOP_SIZES[label]):
                image += 1
                path = f"chair_final/{100_000_000 + label}_{number}.JPG"
                lines.append(f"{image} {label + 1} 3 {path}\n")
                paths.append(root / path)
        (root / f"Ebay_{name}.txt").write_text("".join(lines))
        touch(paths)
    return root


INSHOP = [
    ("train", 25_882, 0, 3_997),
    ("query", 14_218, 3_997, 3_985),
    ("gallery", 12_612, 3_997, 3_985),
]


def inshop_official(
    root: Path,
    *,
    images: str = "",
    lists: str = "Eval",
    parts: Sequence[tuple[str, int, int, int]] = INSHOP,
) -> Path:
    rows = []
    for split, count, first, classes in parts:
        for label, size in enumerate(spread(count, classes), start=first):
            for number in range(size):
                item = f"id_{label:08}"
                rows.append((f"img/MEN/Denim/{item}/{split}_{number}.jpg", item, split))
    (root / lists).mkdir(parents=True, exist_ok=True)
    text = "".join(f"{path}    {item} {split}\n" for path, item, split in rows)
    (root / lists / "list_eval_partition.txt").write_text(
        f"{len(rows)}\nimage_name item_id evaluation_status\n{text}"
    )
    touch(root / images / path for path, _, _ in rows)
    return root


def imagenet_mini(root: Path, *, classes: int = 6, flat: bool = False) -> Path:
    wnids = [f"n{1_440_764 + 111 * number:08}" for number in range(classes)]
    touch(root / "train" / wnid / f"{wnid}_{n}.JPEG" for wnid in wnids for n in range(4))
    answers = ["ImageId,PredictionString\n"]
    for place, wnid in enumerate(wnids):
        for number in range(2):
            stem = f"ILSVRC2012_val_{place * 2 + number:08}"
            touch([root / "val" / ("" if flat else wnid) / f"{stem}.JPEG"])
            answers.append(f"{stem},{wnid} 1 2 3 4\n")
    if flat:
        (root / "LOC_val_solution.csv").write_text("".join(answers))
    return root
