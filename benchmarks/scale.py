"""How cost grows with the number of images: ten and a hundred thousand, a million if asked for.

Each line is measured at every size, in time of the processor, which other programs do not disturb
(one thread: OMP_NUM_THREADS=1), and its slope is that of log time over log size between the last
two: 1 is linear, 2 quadratic. Lines about images and about products of all pairs are measured
at a tenth of the sizes. Vectors have 512 numbers and lie around class centers; images are small
squares of colors, embedded by a small network, so that what the gallery itself costs is seen.

    python benchmarks/scale.py                       10,000 and 100,000
    python benchmarks/scale.py --million             1,000,000, too: 8 GB and some hours
    python benchmarks/scale.py --sizes 1000 10000    for a look
    python benchmarks/scale.py --document            the table of docs/scale.md from the record
"""

import argparse
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import cbml
from cbml.data import ClassBalancedSampler, check, datasets
from cbml.gallery import BuildSettings, Gallery, build, list_images
from cbml.gallery.thumbnails import near_duplicate_groups
from cbml.index import KINDS, Index, Vectors
from cbml.models import Embedder, Preprocessing

DIM, EACH, NOISE = 512, 10, 1.5
# Nothing but products of all pairs may have a larger slope. Of what is small at the largest size
# caches and fixed costs make the slope.
LINEAR, PRODUCT = 1.15, 2.1
SMALL = {"s": 2.0, "ms": 50.0, "MB": 1.0}
DOCUMENT = Path("docs/scale.md")
RECORD = Path("results/benchmarks/scale.txt")
Line = tuple[str, float, str]  # what, how much, unit


def unit_rows(number: int, seed: int) -> Vectors:
    """Unit vectors, ten around each class center."""
    generator = np.random.default_rng(seed)
    rows = np.empty((number, DIM), dtype=np.float32)
    for start in range(0, number, 10_000):
        classes = np.arange(start, min(start + 10_000, number)) // EACH
        centers = np.random.default_rng(1).standard_normal((1 + classes[-1] - classes[0], DIM))
        noise = NOISE * generator.standard_normal((len(classes), DIM))
        part = (np.roll(centers, start, axis=1)[classes - classes[0]] + noise).astype(np.float32)
        rows[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def indexes(size: int) -> Iterator[Line]:
    """Every kind: build, search, save, load, size."""
    rows, queries = unit_rows(size, 0), unit_rows(1000, 2)
    for kind in KINDS:
        index = Index(DIM, kind=kind)
        yield f"{kind}: add", seconds(lambda index=index: index.add(rows)), "s"
        yield (
            f"{kind}: first search",
            seconds(lambda index=index: index.search(queries[:1], 10)),
            "s",
        )
        times = sorted(
            seconds(lambda one=one, index=index: index.search(queries[one : one + 1], 10))
            for one in range(100)
        )
        yield f"{kind}: one query, median", 1000 * times[49], "ms"
        yield f"{kind}: one query, 99th of 100", 1000 * times[98], "ms"
        yield (
            f"{kind}: 1,000 queries",
            seconds(lambda index=index: index.search(queries, 10)),
            "s",
        )
        with tempfile.TemporaryDirectory() as folder:
            yield f"{kind}: save", seconds(lambda index=index, to=folder: index.save(to)), "s"
            yield f"{kind}: load", seconds(lambda to=folder: Index.load(to)), "s"
            size_on_disk = sum(path.stat().st_size for path in Path(folder).iterdir())
            yield f"{kind}: saved, and about as much in memory", size_on_disk / 2**20, "MB"


def draw_images(folder: Path, number: int) -> None:
    """Small squares of colors, ten of a class."""
    generator = np.random.default_rng(0)
    for start in range(0, number, EACH):
        label = folder / f"{start // EACH:06}"
        label.mkdir(parents=True)
        for place in range(min(EACH, number - start)):
            colors = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(colors).save(label / f"{place}.png")


def galleries(size: int) -> Iterator[Line]:
    """`cbml index` of many images, an update, the start of the service, `cbml data check`."""
    half = (0.5, 0.5, 0.5)
    small = Preprocessing(resize=16, crop=16, mean=half, std=half)
    model = Embedder("conv4", dim=64, preprocessing=small).eval()
    with tempfile.TemporaryDirectory() as place:
        images, out = Path(place, "images"), Path(place, "gallery")
        draw_images(images, size)
        settings = BuildSettings(source="images")

        def bring_up_to_date() -> None:
            build(model, list_images(images), out, settings=settings)

        yield "gallery: first build", seconds(bring_up_to_date), "s"
        for number in range(0, size, 100):
            path = images / f"{number // EACH:06}" / f"{number % EACH}.png"
            Image.new("RGB", (4, 4), (number % 256, 9, 9)).save(path)
        yield "gallery: update of one in a hundred", seconds(bring_up_to_date), "s"
        yield "gallery: open", seconds(lambda: Gallery(out).close()), "s"
        with Gallery(out) as gallery:
            query = gallery.image_query(int(gallery.ids[0]))
            gallery.search(query)
            yield "gallery: search", 1000 * seconds(lambda: gallery.search(query)), "ms"
        yield "data check", seconds(lambda: check(datasets.folder(images))), "s"


def sampling(size: int) -> Iterator[Line]:
    """The sampler of training: a plan and ten batches."""
    labels = np.arange(size) // EACH

    def plan() -> None:
        sampler = ClassBalancedSampler(labels, classes_per_batch=15, samples_per_class=8, seed=0)
        for step in range(10):
            sampler.share(0, step)

    yield "sampler: plan and 10 batches", seconds(plan), "s"


def near_duplicates(size: int) -> Iterator[Line]:
    """Groups of images that look the same."""
    generator = np.random.default_rng(0)
    quarters = generator.integers(30, 226, (size, 2, 1, 2, 1, 3))
    colors = quarters + generator.integers(-30, 30, (size, 2, 4, 2, 4, 3))
    signatures = colors.astype(np.uint8).reshape(size, -1)
    yield "near-duplicates", seconds(lambda: near_duplicate_groups(signatures)), "s"


def all_pairs(size: int) -> Iterator[Line]:
    """What compares all pairs: evaluation and statistics."""
    rows, labels = torch.from_numpy(unit_rows(size, 0)), torch.arange(size) // EACH
    yield "evaluate (all pairs)", seconds(lambda: cbml.evaluate(rows, labels)), "s"
    yield "pair statistics (all pairs)", seconds(lambda: cbml.PairStatistics.of(rows, labels)), "s"


def shown(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2g} {unit}"


def print_table(sizes: list[int], found: dict[str, list[tuple[float, str]]]) -> list[str]:
    """A table in Markdown; gives the lines that grow too fast."""
    print("| what | " + " | ".join(f"{size:,}" for size in sizes) + " | slope |")
    print("|---" * (len(sizes) + 2) + "|")
    too_fast = []
    for name, values in found.items():
        (before, _), (after, _) = values[-2:]
        grown = math.log(max(after, 1e-9) / max(before, 1e-9)) / math.log(sizes[-1] / sizes[-2])
        limit = PRODUCT if "all pairs" in name else LINEAR
        fast = grown > limit and after > SMALL[values[-1][1]]
        too_fast += [name] if fast else []
        cells = " | ".join(shown(*value) for value in values)
        print(f"| {name} | {cells} | {grown:.2f}{' !' if fast else ''} |")
    return too_fast


def write_document() -> None:
    """Put the table of the record into the document."""
    table = "\n".join(
        line for line in RECORD.read_text(encoding="utf-8").splitlines() if line.startswith("|")
    )
    text = DOCUMENT.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^\|(?:.*\n\|)*.*$", lambda _: table, text, count=1)
    DOCUMENT.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", action="store_true", help="1,000,000, too")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--document", action="store_true", help="the table of docs/scale.md")
    options = parser.parse_args()
    if options.document:
        write_document()
        return
    sizes = [*options.sizes, *([1_000_000] if options.million else [])]
    if len(sizes) < 2:
        parser.error("a slope needs two sizes")
    found: dict[str, list[tuple[float, str]]] = {}
    for size in (2000, *sizes):  # the first for what is loaded and compiled once
        tenth = size // 10
        if size == sizes[0]:
            found.clear()
        parts = [indexes(size), sampling(size), near_duplicates(tenth)]
        for part in (*parts, galleries(tenth), all_pairs(tenth)):
            for name, value, unit in part:
                found.setdefault(name, []).append((value, unit))
    print(f"{torch.get_num_threads()} threads; images, near-duplicates and pairs at a tenth")
    too_fast = print_table(sizes, found)
    if too_fast:
        print(f"grow too fast: {', '.join(too_fast)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
