"""A small gallery of generated images, a real server process for it, and its answers."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import cbml
from cbml.gallery import BuildResult, BuildSettings, build, list_images
from cbml.models import Embedder

CLASSES, EACH = 6, 5


def draw(seed: int, size: tuple[int, int] = (60, 45)) -> Image.Image:
    """Colored squares, unlike those of any other seed."""
    few = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(few).resize(size, Image.Resampling.NEAREST)


def save(path: Path, seed: int, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(seed).save(path, **options)  # type: ignore[arg-type]
    return path


def images(folder: Path) -> Path:
    """A folder for each class, one image without a class, one that cannot be read."""
    for label in range(CLASSES):
        for number in range(EACH):
            save(folder / f"class {label}" / f"{number}.png", 100 * label + number)
    save(folder / "alone.png", 9999)
    (folder / "class 0" / "broken.jpg").write_bytes(b"<html>not an image</html>")
    return folder


def model(seed: int = 1) -> Embedder:
    return Embedder("conv4", dim=8, seed=seed).eval()


def built(
    folder: Path, gallery: Path, *, seed: int = 1, settings: BuildSettings | None = None
) -> BuildResult:
    listed = list_images(folder)
    return build(model(seed), listed, gallery, evaluate=cbml.evaluate, settings=settings)


@contextlib.contextmanager
def server(
    gallery: Path, *options: str, before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A real `cbml serve` on a free port of this machine, and that port; `before` starts it."""
    serve = [sys.executable, "-m", "cbml", "serve", str(gallery), "--port", "0"]
    command = [*before, *serve, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            seen: list[str] = []
            for line in process.stderr:
                seen.append(line)
                if "http://" in line:
                    port = int(line.split("http://")[1].split("/")[0].rpartition(":")[2])
                    break
            else:
                raise RuntimeError(f"the server did not start: {seen}")
            yield process, port
        finally:
            process.terminate()
