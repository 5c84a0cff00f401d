"""How cost grows with the number of images: ten and a hundred thousand, a million if asked for.

Each line is measured at every size, in time of the processor, which other programs do not disturb
(one thread: OMP_NUM_THREADS=1), that of servers included, and its slope is that of log time over
log size between the last two: 1 is linear, 2 quadratic. Lines about images and about products of
all pairs are measured at a tenth of the sizes. Vectors have 512 numbers, those of the Milvus server
128, and lie around class centers; images are small squares of colors, embedded by a small network,
so that what the gallery itself costs is seen.

    python benchmarks/scale.py                       10,000 and 100,000
    python benchmarks/scale.py --million             1,000,000, too: 8 GB and half an hour
    python benchmarks/scale.py --only milvus galleries  some of the parts
    python benchmarks/scale.py --sizes 1000 10000    for a look
    python benchmarks/scale.py --document            table and figure of docs/scale.md
"""

import argparse
import io
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image
from serve import asked, start_server

import cbml
from cbml.data import ClassBalancedSampler, check, datasets
from cbml.gallery import BuildSettings, Gallery, build, list_images
from cbml.gallery.thumbnails import near_duplicate_groups
from cbml.index import KINDS, Index, Vectors
from cbml.index.milvus import MilvusStore
from cbml.models import Embedder, Preprocessing

DIM, MILVUS_DIM, EACH, NOISE = 512, 128, 10, 1.5
# Nothing but products of all pairs may have a larger slope. Of what is small at the largest size
# caches and fixed costs make the slope.
LINEAR, PRODUCT = 1.15, 2.1
SMALL = {"s": 2.0, "ms": 50.0, "MB": 1.0}
DOCUMENT = Path("docs/scale.md")
RECORD = Path("results/benchmarks/scale.txt")
FIGURE = Path("docs/images/scale.png")
Line = tuple[str, float, str]  # what, how much, unit


def unit_rows(number: int, seed: int, dim: int = DIM) -> Vectors:
    """Unit vectors, ten around each class center."""
    generator = np.random.default_rng(seed)
    rows = np.empty((number, dim), dtype=np.float32)
    for start in range(0, number, 10_000):
        classes = np.arange(start, min(start + 10_000, number)) // EACH
        centers = np.random.default_rng(1).standard_normal((1 + classes[-1] - classes[0], dim))
        noise = NOISE * generator.standard_normal((len(classes), dim))
        part = (np.roll(centers, start, axis=1)[classes - classes[0]] + noise).astype(np.float32)
        rows[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def seconds(action: Callable[[], object], server: int | None = None) -> float:
    """Processor time of an action, with that of a server and its children."""
    start, before = time.process_time(), processor_time(server)
    action()
    return time.process_time() - start + processor_time(server) - before


def processor_time(pid: int | None) -> float:
    if pid is None:
        return 0.0
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


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


def milvus(size: int) -> Iterator[Line]:
    """The same of a server, where one can run."""
    sys.path.append("tests/index")
    from milvus_server import MilvusServer, unpack, why_not

    if why_not() is not None:
        return
    rows, queries = unit_rows(size, 0, MILVUS_DIM), unit_rows(1000, 2, MILVUS_DIM)
    with tempfile.TemporaryDirectory() as place:
        unpack(Path(place, "server"))
        server = MilvusServer(Path(place, "server"))
        server.start()
        store = MilvusStore(server.address, MILVUS_DIM, name="scale", timeout=900)

        def add() -> None:
            for start in range(0, size, 10_000):
                store.add(rows[start : start + 10_000])

        def search_one_by_one() -> None:
            for one in range(100):
                store.search(queries[one : one + 1], 10)

        try:
            yield "milvus: add", seconds(add, server.server), "s"
            store.search(queries[:1], 10)
            each = 10 * seconds(search_one_by_one, server.server)
            yield "milvus: one query, mean of 100", each, "ms"
            search_all = lambda: store.search(queries, 10)  # noqa: E731
            yield "milvus: 1,000 queries", seconds(search_all, server.server), "s"
            store.close()
        finally:
            server.stop()


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
        yield from served(out)
        yield "data check", seconds(lambda: check(datasets.folder(images))), "s"


def served(folder: Path) -> Iterator[Line]:
    """A gallery over HTTP; each line but the first is a mean of twenty requests."""
    server, address = start_server(folder)
    upload, pid = io.BytesIO(), server.pid
    Image.new("RGB", (64, 64), (9, 99, 199)).save(upload, "PNG")
    try:
        yield "serve: start", processor_time(pid), "s"
        for name, path, body in [
            ("an uploaded image", "search", upload.getvalue()),
            ("an image of the gallery", "images/1/search", None),
            ("a page of the list", "images?limit=100", None),
            ("a new thumbnail", "images/{}/thumbnail", None),
            ("the map", "map", None),
        ]:

            def ask(path: str = path, body: bytes | None = body) -> None:
                for number in range(1, 21):  # image 0 was replaced
                    asked(address, f"/api/v1/{path.format(number)}", body)

            yield f"serve: {name}", 50 * seconds(ask, pid), "ms"
    finally:
        server.terminate()
        server.wait()


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


# What is measured, and at which part of the size.
PARTS: dict[str, tuple[Callable[[int], Iterator[Line]], int]] = {
    "indexes": (indexes, 1),
    "milvus": (milvus, 1),
    "sampling": (sampling, 1),
    "near_duplicates": (near_duplicates, 10),
    "galleries": (galleries, 10),
    "all_pairs": (all_pairs, 10),
}


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
    """Put the table of the record into the document, and draw it."""
    table = "\n".join(
        line for line in RECORD.read_text(encoding="utf-8").splitlines() if line.startswith("|")
    )
    text = DOCUMENT.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^\|(?:.*\n\|)*.*$", lambda _: table, text, count=1)
    DOCUMENT.write_text(text, encoding="utf-8")
    draw_picture([line.strip("| ").split(" | ") for line in table.splitlines()])


def draw_picture(cells: list[list[str]]) -> None:
    """Some lines of the table, both axes in powers of ten."""
    from matplotlib import pyplot

    sizes = [int(size.replace(",", "")) for size in cells[0][1:-1]]
    figure, panels = pyplot.subplots(1, 3, figsize=(13, 6), layout="constrained")
    for panel, title, names in zip(
        panels,
        ["one query, milliseconds", "work on many images, seconds", "one request, milliseconds"],
        [": one query", ("add", "pq4: first", "build", "update", "data check", "evaluate"),
         "serve: "],
        strict=True,
    ):  # fmt: skip
        for row in cells[2:]:
            wanted = any(name in row[0] for name in ([names] if isinstance(names, str) else names))
            if not wanted or row[0] in ("serve: start",) or "99th" in row[0]:
                continue
            known = [value for value in row[1:-1] if value != "not measured"]
            values = [float(value.split()[0].replace(",", "")) for value in known]
            label = f"{row[0]} ({row[-1].strip(' !')})"
            panel.loglog(sizes[: len(values)], values, marker="o", label=label)
        reference = np.array(sizes) / sizes[-1] * panel.get_ylim()[1]
        panel.loglog(sizes, reference, color="gray", linestyle=":", label="slope 1")
        panel.set(title=title, xlabel="size of the table; lines about images: a tenth")
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", action="store_true", help="1,000,000, too")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts")
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
        if size == sizes[0]:
            found.clear()
        for part in options.only:
            for name, value, unit in PARTS[part][0](size // PARTS[part][1]):
                found.setdefault(name, []).append((value, unit))
                print(f"{size:,} {name} {shown(value, unit)}", file=sys.stderr, flush=True)
    print(f"{torch.get_num_threads()} threads; images, near-duplicates and pairs at a tenth")
    too_fast = print_table(sizes, found)
    if too_fast:
        print(f"grow too fast: {', '.join(too_fast)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
