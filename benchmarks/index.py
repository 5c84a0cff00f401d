"""Time of `Index` against bare faiss, what its kinds and those of faiss gain and lose, in one run.

60,502 rows of 512 numbers, the size of SOP's test set, around 11,316 class centers, as a good model
places them; the queries are further rows of the same classes. Contestants take turns; times are
medians over the rounds. Recall is the share of the ten truly nearest rows that a kind finds;
duplicates of rows show what ties at the last place cost. The kinds of faiss beside ours are a graph
(HNSW), cells (IVF) and codes of 4 bits without and with cells; refined ones compare the best again.
All times of these are shares of the time of an exact search, for one query and for all.

    python benchmarks/index.py [--quick] [--vectors file.npy]

--quick takes a tenth of the rows; --vectors real embeddings, of which some become the queries.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import faiss
import numpy as np

from cbml import Index
from cbml.index import KINDS, Ids, Vectors

ROWS, CLASSES, DIM, QUERIES, NOISE = 60_502, 11_316, 512, 1000, 2.2
LIMIT = 1.2


def rows_of_classes(number: int, seed: int, classes: int) -> Vectors:
    """Unit rows around class centers."""
    centers = np.random.default_rng(0).standard_normal((classes, DIM), dtype=np.float32)
    generator = np.random.default_rng(seed)
    rows = NOISE * generator.standard_normal((number, DIM), dtype=np.float32)
    rows += centers[generator.integers(classes, size=number)]
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def medians(contestants: list[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of each, taken in turns so that a busy machine hits all alike."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for contestant in contestants:
        contestant()
    for _ in range(rounds):
        for contestant, times in zip(contestants, seconds, strict=True):
            start = time.perf_counter()
            contestant()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def compare_with_faiss(rows: Vectors, queries: Vectors, rounds: int, name: str) -> float:
    """Print and give the largest ratio of exact search to bare faiss."""
    bare, index = faiss.IndexFlatIP(DIM), Index(DIM)
    bare.add(rows)
    index.add(rows)
    largest = 0.0
    for number, k, turns in (
        (1, 10, 10),
        (1, 100, 10),
        (len(queries), 10, 1),
        (len(queries), 100, 1),
    ):
        wanted = queries[:number]
        contestants = [partial(bare.search, wanted, k), partial(index.search, wanted, k)]
        floor, ours = medians(contestants, rounds * turns)
        largest = max(largest, ours / floor)
        print(
            f"{name:12} {number:5} queries, k {k:4}   faiss {1000 * floor:9.1f} ms"
            f"   Index {1000 * ours:9.1f} ms   {ours / floor:5.2f} ×",
            flush=True,
        )
    return largest


def share_found(truth: Ids, found: Ids) -> float:
    """Recall: the mean share of the true neighbors that were found."""
    both = [len(set(a) & set(b)) for a, b in zip(truth, found, strict=True)]
    return float(np.mean(both)) / truth.shape[1]


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def describe_kind(index: Index, rows: Vectors, queries: Vectors, truth: Ids, rounds: int) -> None:
    added = seconds(lambda: index.add(rows))
    recall = share_found(truth, index.search(queries, 10).ids)
    alone, together = medians(
        [lambda: index.search(queries[:1], 10), lambda: index.search(queries, 10)], rounds
    )
    with tempfile.TemporaryDirectory() as folder:
        saved, loaded = seconds(lambda: index.save(folder)), seconds(lambda: Index.load(folder))
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 2**20
    print(
        f"{index.kind:5} recall@10 {recall:.4f}   one query {1000 * alone:7.2f} ms   "
        f"{len(queries)} queries {together:7.3f} s   add {added:6.2f} s   save {saved:5.2f} s   "
        f"load {loaded:5.2f} s   {size:6.1f} MiB",
        flush=True,
    )


def weigh(name: str, index: faiss.Index, queries: Vectors, truth: Ids, exact: list[float]) -> None:
    """Print recall and times of an index of faiss, as shares of exact search."""
    recall = share_found(truth, index.search(queries, 10)[1])
    alone, together = medians(
        [lambda: index.search(queries[:1], 10), lambda: index.search(queries, 10)], 5
    )
    shares = f"one query {alone / exact[0]:6.3f}   many {together / exact[1]:6.3f}"
    print(f"      {name:36} recall@10 {recall:.4f}   {shares}", flush=True)


def weigh_kinds(rows: Vectors, queries: Vectors, truth: Ids) -> None:
    """What faiss offers besides: a graph, cells, codes, and codes in cells."""
    flat = faiss.IndexFlatIP(DIM)
    flat.add(rows)
    exact = medians([lambda: flat.search(queries[:1], 10), lambda: flat.search(queries, 10)], 5)
    graph = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = 128
    print(f"      built in {seconds(lambda: graph.add(rows)):.1f} s")
    for effort in (32, 128, 512, 2048):
        graph.hnsw.efSearch = effort
        weigh(f"HNSW32, effort {effort}", graph, queries, truth, exact)
    lists = int(2 * len(rows) ** 0.5)
    cells = faiss.index_factory(DIM, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    print(f"      built in {seconds(partial(fill, cells, rows)):.1f} s")
    for visited in (4, 16, 64):
        cells.nprobe = visited
        weigh(f"IVF{lists}, {visited} cells", cells, queries, truth, exact)
    for name in (f"PQ{DIM // 2}x4fs,RFlat", f"IVF{lists},PQ{DIM // 2}x4fs,RFlat"):
        codes = faiss.index_factory(DIM, name, faiss.METRIC_INNER_PRODUCT)
        print(f"      built in {seconds(partial(fill, codes, rows)):.1f} s")
        if name.startswith("IVF"):
            faiss.extract_index_ivf(codes).nprobe = 64
        for factor in (2, 5, 20):
            codes.k_factor = factor
            weigh(f"{name}, {10 * factor} compared", codes, queries, truth, exact)


def fill(index: faiss.Index, rows: Vectors) -> None:
    """Train and add."""
    index.train(rows)
    index.add(rows)


def real_rows(path: Path, queries: int) -> tuple[Vectors, Vectors]:
    """Rows and queries from a file of unit vectors, shuffled."""
    found = np.load(path).astype(np.float32).reshape(-1, DIM)
    found = found[np.random.default_rng(0).permutation(len(found))]
    return found[queries:], found[:queries]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, for a look")
    parser.add_argument("--vectors", type=Path, help="unit vectors of 512 numbers, .npy")
    options = parser.parse_args()
    quick: bool = options.quick
    scale, rounds = (10, 3) if quick else (1, 5)
    if options.vectors is None:
        rows = rows_of_classes(ROWS // scale, 1, CLASSES // scale)
        queries = rows_of_classes(QUERIES // scale, 2, CLASSES // scale)
    else:
        rows, queries = real_rows(options.vectors, QUERIES // scale)
    print(f"faiss {faiss.__version__}, {faiss.omp_get_max_threads()} threads, {len(rows)} × {DIM}")
    largest = compare_with_faiss(rows, queries, rounds, "plain")
    doubled = np.concatenate([rows[: len(rows) // 2]] * 2)
    compare_with_faiss(doubled, queries, max(1, rounds // 2), "all twice")
    exact = Index(DIM)
    exact.add(rows)
    truth = exact.search(queries, 10).ids
    for kind in KINDS:
        index = Index(DIM, kind=kind)
        describe_kind(index, rows, queries, truth, rounds)
        print(f"      {index.describe()}")
    weigh_kinds(rows, queries, truth)
    print(f"largest ratio of exact search {largest:.2f} ×  (goal: at most {LIMIT} ×)")
    if largest > LIMIT and not quick:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
