"""How long a search takes at 60,000 images, asked over HTTP of a real server process.

The gallery is made up: vectors are class centers and noise, the files a few hundred small images
that many entries share. The network is real but untrained: its time does not depend on its weights.
Prints medians and 95th percentiles in milliseconds of whole requests, next to the bare product of
one query with all vectors and to one bare forward pass, measured in the same run.

    python benchmarks/serve.py                         60,000 images (promised: under 200 ms)
    python benchmarks/serve.py --quick                 2,000 images
    python benchmarks/serve.py --only-build FOLDER     make the gallery, to look at with cbml serve
"""

import argparse
import dataclasses
import io
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from cbml import Embedder, Index, embed, evaluate
from cbml.gallery.images import GalleryImage
from cbml.gallery.layout import layout
from cbml.gallery.loading import fingerprint
from cbml.gallery.scores import score_queries
from cbml.gallery.storage import State, write_state
from cbml.gallery.thumbnails import SIGNATURE_SIZE

PROMISED = 0.2
CLIENTS = 16
FILES = 240
PER_CLASS = 6  # about as many as the images of a product in SOP
BACKBONE = "efficientnet_lite0"


def draw(number: int) -> Image.Image:
    """An image that can be told from the others."""
    chance = np.random.default_rng(number)
    image = Image.new("RGB", (240, 180), tuple(chance.integers(60, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = chance.integers(0, 240), chance.integers(0, 180)
        size = chance.integers(15, 70)
        color = tuple(chance.integers(0, 256, 3).tolist())
        shape = pen.ellipse if chance.random() < 0.5 else pen.rectangle
        shape((x - size, y - size, x + size, y + size), fill=color)
    return image


def draw_files(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.jpg" for number in range(FILES)]
    for number, path in enumerate(paths):
        draw(number).save(path, quality=88)
    return [path.absolute() for path in paths]


def made_vectors(count: int, dim: int, noise: float) -> NDArray[np.float32]:
    chance = np.random.default_rng(0)
    centers = chance.standard_normal((-(-count // PER_CLASS), dim), dtype=np.float32)
    rows = np.repeat(centers, PER_CLASS, axis=0)[:count]
    rows += noise * chance.standard_normal(rows.shape, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_gallery(folder: Path, count: int, dim: int, *, noise: float = 2.2, seed: int = 0) -> None:
    """A gallery of so many entries, saved as `cbml index` saves it."""
    files = draw_files(folder / "files")
    vectors = made_vectors(count, dim, noise + 0.4 * seed)
    statuses = [path.stat() for path in files]

    def entry(number: int) -> GalleryImage:
        label, file = f"product {number // PER_CLASS}", number // PER_CLASS % FILES
        status, name = statuses[file], f"{label}/photograph {number % PER_CLASS}.jpg"
        known = status.st_size, status.st_mtime_ns, f"{number:064x}", 240, 180
        return GalleryImage(number, str(files[file]), name, label, *known)

    images = tuple(entry(number) for number in range(count))
    model = Embedder(BACKBONE, dim=dim, weights="none", seed=seed).eval()
    index = Index(dim)
    index.add(vectors)
    state = State(
        uid="0" * 32,
        source="made up",
        store="faiss",
        fingerprint=fingerprint(model),
        model=model.describe(),
        generation=1,
        next_id=count,
        images=images,
        signatures=np.random.default_rng(1).integers(
            0, 256, (count, SIGNATURE_SIZE), dtype=np.uint8
        ),
        layout=layout(vectors),
    )
    state = dataclasses.replace(state, scores=score_queries(index, state, evaluate))
    index.save(state.index_folder(folder))
    model.save(state.model_folder(folder))
    write_state(folder, state)


def start_server(folder: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "cbml", "serve", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        if "http://" in line:
            return server, line.split("http://")[1].split()[0].strip("/")
    raise RuntimeError("the server did not start")


def asked(address: str, path: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(f"http://{address}{path}", data=body)
    if body is not None:
        request.add_header("Content-Type", "image/jpeg")
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
    return content


def timed(call: Callable[[int], object], repetitions: int) -> tuple[float, float]:
    """Median and 95th percentile, in seconds."""
    seconds = []
    for number in range(repetitions):
        start = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)), float(np.quantile(seconds, 0.95))


def report(what: str, times: tuple[float, float], promised: float | None = None) -> bool:
    goal = "" if promised is None else f"   (promised: under {1000 * promised:.0f})"
    print(f"  {what:<38} {1000 * times[0]:8.1f}  {1000 * times[1]:8.1f}{goal}", flush=True)
    return promised is None or times[0] < promised


def bare(model: Embedder, vectors: torch.Tensor, pixels: NDArray[np.uint8]) -> object:
    """What a search cannot do without: the embedding, its product with all vectors, the best."""
    query = embed(model, [pixels], progress=False)[0]
    # By torch: numpy brings threads of its own, and the two kinds would wait for each other.
    return torch.topk(vectors @ torch.from_numpy(query), 50)


def sum_of(call: Callable[[int], object], repetitions: int) -> float:
    """Seconds of all calls together."""
    start = time.perf_counter()
    for number in range(repetitions):
        call(number)
    return time.perf_counter() - start


def many_clients(url: str, uploads: list[bytes]) -> float:
    """Searches per second with uploads of several clients at once, none of them refused."""
    address, path = url.removeprefix("http://").split("/", 1)
    bodies = uploads * -(-4 * CLIENTS // len(uploads))
    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        for _ in clients.map(lambda body: asked(address, f"/{path}", body), bodies):
            pass
    return len(bodies) / (time.perf_counter() - start)


def measure(folder: Path, count: int, dim: int, repetitions: int) -> bool:
    uploads = []
    for number in range(repetitions):
        output = io.BytesIO()
        draw(1000 + number).save(output, format="JPEG")
        uploads.append(output.getvalue())
    vectors = made_vectors(count, dim, 2.2)
    model = Embedder(BACKBONE, dim=dim, weights="none").eval()
    pixels = [np.array(draw(number)) for number in range(repetitions)]
    server, address = start_server(folder)
    api = "/api/v1"
    try:
        print(f"{count:,} images × {dim}, {BACKBONE}; milliseconds: median, 95th percentile")
        rows = torch.from_numpy(vectors)
        report("bare product, one query", timed(lambda n: rows @ rows[n], repetitions))
        report(
            "bare embedding, one image",
            timed(lambda n: embed(model, [pixels[n]], progress=False), repetitions),
        )
        kept = [
            report(
                "search with an image of the gallery",
                timed(lambda n: asked(address, f"{api}/images/{n * 7}/search?k=50"), repetitions),
                PROMISED,
            ),
            report(
                "search with an uploaded image",
                timed(lambda n: asked(address, f"{api}/search?k=50", uploads[n]), repetitions),
                PROMISED,
            ),
            report(
                "the same, of one label",
                timed(
                    lambda n: asked(address, f"{api}/search?label=product%20{n}", uploads[n]),
                    repetitions,
                ),
                PROMISED,
            ),
        ]
        alone = timed(lambda n: bare(model, rows, pixels[n]), repetitions)
        report("bare embedding and product", alone)
        together = many_clients(f"http://{address}{api}/search?k=50", uploads)
        single = repetitions / sum_of(lambda n: bare(model, rows, pixels[n]), repetitions)
        share = together / single
        print(f"  {CLIENTS} clients at once: {share:.2f} of the searches per second that")
        print("  one process makes by bare embedding and product    (wanted: at least 0.70)")
        report(
            "a page of 50 thumbnails, new",
            timed(
                lambda n: [
                    asked(address, f"{api}/images/{50 * n + i}/thumbnail") for i in range(50)
                ],
                4,
            ),
        )
        report(
            "the same page again, cached",
            timed(
                lambda n: [
                    asked(address, f"{api}/images/{50 * n + i}/thumbnail") for i in range(50)
                ],
                4,
            ),
        )
        report("the map", timed(lambda n: json.loads(asked(address, f"{api}/map")), 4))
    finally:
        server.terminate()
        server.wait()
    return all(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only-build", type=Path, metavar="FOLDER")
    parser.add_argument("--images", type=int)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0, help="another one is another model")
    options = parser.parse_args()
    torch.set_num_threads(2)
    count = options.images or (2_000 if options.quick else 60_000)
    if options.only_build is not None:
        make_gallery(options.only_build, count, options.dim, seed=options.seed)
        print(f"cbml serve {options.only_build}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "gallery"
        make_gallery(folder, count, options.dim)
        kept = measure(folder, count, options.dim, 10 if options.quick else 40)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
