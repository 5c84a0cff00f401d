"""Small sets of real files for tests."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from cbml.data.image_dataset import ImageDataset

ROOT = Path(__file__).parent.parent.parent
SHARED = Path(os.environ.get("CBML_SHARED", ROOT.parent / "shared"))
CUB = SHARED / "data" / "cub_200_2011_160"


def save_image(path: Path, seed: int, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path)


def image_dataset(
    folder: Path, classes: int = 6, each: int = 5, size: tuple[int, int] = (40, 30)
) -> ImageDataset:
    """A folder for each class; images vary in shape."""
    paths, labels = [], []
    for label in range(classes):
        for number in range(each):
            seed = label * 1_000 + number
            path = folder / f"class{label}" / f"{number}.png"
            save_image(path, seed, (size[0] + seed % 7, size[1] + seed % 11))
            paths.append(path)
            labels.append(label)
    names = tuple(f"class{label}" for label in range(classes))
    return ImageDataset(tuple(paths), np.array(labels), names)
