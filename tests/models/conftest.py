"""Real photographs for the tests of the models, from packages that bring some along."""

from pathlib import Path

import numpy as np
import pytest
import skimage
import sklearn.datasets
from numpy.typing import NDArray
from PIL import Image

PHOTOGRAPHS = {
    "chelsea": Path(skimage.__file__).parent / "data" / "chelsea.png",
    "coffee": Path(skimage.__file__).parent / "data" / "coffee.png",
    "motorcycle": Path(skimage.__file__).parent / "data" / "motorcycle_left.png",
    "camera": Path(skimage.__file__).parent / "data" / "camera.png",
    "rocket": Path(skimage.__file__).parent / "data" / "rocket.jpg",
    "china": Path(sklearn.datasets.__file__).parent / "images" / "china.jpg",
}


@pytest.fixture(scope="session")
def photograph_paths() -> dict[str, Path]:
    return PHOTOGRAPHS


@pytest.fixture(scope="session")
def photographs() -> dict[str, NDArray[np.uint8]]:
    """name -> uint8 RGB, H × W × 3."""
    return {name: np.array(Image.open(path).convert("RGB")) for name, path in PHOTOGRAPHS.items()}
