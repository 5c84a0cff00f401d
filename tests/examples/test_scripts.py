"""Every example runs as a reader would run it, on tiny images."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cbml
from cbml import Embedder
from tests.program import run

EXAMPLES = Path(cbml.__file__).parent.parent / "examples"
TINY = ["backbone=conv4", "weights=none", "crop=32", "dim=16", "batch_range=16"]
SETTINGS = [word for key in [*TINY, "steps=4", "clusters=4"] for word in ("--set", key)]

CASES: dict[str, tuple[list[str], str]] = {
    "own_loop.py": (["--epochs", "2"], r"Recall@1 among colors never seen: [\d.]+% before"),
    "with_library.py": (["--steps", "3"], r"precision_at_1: [\d.]+% before, [\d.]+% after"),
    "unlabeled_folder.py": (
        ["images", "--out", "run", *SETTINGS],
        r"^24 images in 4 clusters; the largest:\n +\d+ images: \S+\.png",
    ),
    "search.py": (
        ["images", "images/2/1.png", "--model", "model", "--gallery", "gallery"],
        r"^24 images, 24 of them new\n  1   1\.000  2/1\.png  2\n",
    ),
}
ELSEWHERE = {"emoji.py", "ladder.py", "recipe.py", "without_labels.py"}  # have tests of their own


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(CASES) | ELSEWHERE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six classes of four images, and a saved model."""
    chance = np.random.default_rng(0)
    for label in range(6):
        (tmp_path / "images" / str(label)).mkdir(parents=True)
        color = chance.integers(0, 200, 3)
        for number in range(4):
            pixels = (color + chance.integers(0, 50, (40, 48, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / str(label) / f"{number}.png")
    Embedder("conv4", dim=16, weights="none").save(tmp_path / "model")
    return tmp_path


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_example_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBML_CACHE", str(folder / "cache"))
    words, expected = CASES[name]
    code = f"import runpy; runpy.run_path({str(EXAMPLES / name)!r}, run_name='__main__')"
    done = run(*words, code=code, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(expected, done.stdout, re.MULTILINE), done.stdout
