"""The two images of the README, made from a run of `cbml demo` by our own program.

    python docs/images/make.py cbml-demo/run --classes 300

Only unseen emoji are shown, as Noto (Google, Apache 2.0) and Twemoji (CC BY 4.0) draw them. Needs
the extras demo, serve and dev, and a Chromium.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

from cbml import Embedder, datasets, evaluate
from cbml.bayes import MatchProbability
from cbml.data import ImageDataset, PackedDataset
from cbml.gallery import build, list_images
from cbml.runs import (
    Demonstration,
    build_model,
    recorded_config,
    reliability_of,
    view_of,
    write_demo_report,
)

FREE = {"Goog": "noto", "Twtr": "twemoji"}
HERE = Path(__file__).parent


def free_images(folder: Path, classes: int) -> ImageDataset:
    """Some unseen emoji by the two free vendors, under their Unicode names."""
    test = datasets.emoji(validation=0).test
    assert test is not None
    found: dict[str, list[Path]] = {}
    for path, label in zip(test.paths, test.known_labels.tolist(), strict=True):
        if "-" not in path.stem and path.parent.name in FREE:  # one code point
            found.setdefault(test.class_names[label], []).append(path)
    both = sorted(name for name, paths in found.items() if len(paths) == len(FREE))
    chosen = np.random.default_rng(0).permutation(both)[:classes]
    names, paths, labels = sorted(chosen.tolist()), [], []
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for path in found[name]:
            copy = folder / name / f"{FREE[path.parent.name]}.png"
            shutil.copy(path, copy)
            paths.append(copy)
            labels.append(number)
    return ImageDataset(tuple(paths), np.array(labels), tuple(names))


def shoot(report: Path, gallery: Path) -> None:
    """Both pages in a browser, as small PNGs."""
    words = [sys.executable, "-m", "cbml", "serve", str(gallery), "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "http://" in line)
        address = next(word for word in line.split() if word.startswith("http://"))
        with sync_playwright() as play:
            program = shutil.which("chromium")
            browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 880, "height": 1000})
            page.set_default_timeout(300_000)
            for name, place in (("report", report.as_uri()), ("page", f"{address}?query=8&k=12")):
                page.goto(place)
                page.wait_for_load_state("networkidle")
                page.screenshot(path=HERE / f"{name}.png")
                colors = Image.open(HERE / f"{name}.png").convert("RGB").quantize(192)
                colors.save(HERE / f"{name}.png", optimize=True)
            browser.close()
        server.terminate()


def main() -> None:
    """Embed, report, index, photograph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--classes", type=int, default=300)
    options = parser.parse_args()
    config = recorded_config(options.run)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = PackedDataset.of(
            free_images(folder / "free-emoji", options.classes), config.model.crop
        )
        model = Embedder.load(options.run / "model").eval()
        before, after = view_of(build_model(config), dataset), view_of(model, dataset)
        path = options.run / "calibration.json"
        probability = MatchProbability.load(path) if path.is_file() else None
        found = Demonstration(
            folder=folder,
            images=len(dataset.images),
            classes=options.classes,
            before=before.scores.metrics,
            after=after.scores.metrics,
            pairs={},
            reliability=None,
        )
        checked = None if probability is None else reliability_of(probability, after, dataset)
        write_demo_report(folder / "report.html", found.sentence, dataset, before, after, checked)
        images = list_images(folder / "free-emoji")
        build(model, images, folder / "gallery", evaluate=evaluate, calibration=probability)
        shoot(folder / "report.html", folder / "gallery")


if __name__ == "__main__":
    main()
