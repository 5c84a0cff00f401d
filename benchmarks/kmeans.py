"""k-means at the size of SOP, as pseudo-labels need it: ours against scikit-learn, in one run.

59,551 unit vectors of 128 numbers in 10,000 clusters. All but MiniBatchKMeans start from the same
centers and do as many rounds; MiniBatchKMeans draws as many vectors as those rounds see. Inertia is
the sum of squared distances to the nearest center, found for all by the same exact search. The
vectors lie around 11,318 centers, as many as SOP has classes. Contestants take turns; the ratio is
that of the quickest of their times.

    python benchmarks/kmeans.py [--quick] [--rounds 20] [--repeats 3] [--elkan]
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Literal

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning

from cbml.index import kmeans

Vectors = NDArray[np.float32]
LIMIT = 0.8


def vectors(count: int, classes: int) -> Vectors:
    """Unit vectors around random centers, with as much noise as an untrained model has."""
    chance = np.random.default_rng(0)
    centers = chance.standard_normal((classes, 128), dtype=np.float32)
    rows = centers[np.arange(count) % classes]
    rows = rows + chance.standard_normal((count, 128), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def inertia(rows: Vectors, centers: Vectors) -> float:
    """Sum of squared distances to the nearest center."""
    total = 0.0
    squares = (centers * centers).sum(axis=1)
    for start in range(0, len(rows), 4096):
        part = rows[start : start + 4096]
        nearest = (squares - 2.0 * (part @ centers.T)).min(axis=1)
        total += float((nearest + (part * part).sum(axis=1)).sum(dtype=np.float64))
    return total


def ours(rows: Vectors, clusters: int, rounds: int) -> Vectors:
    """Exact, without the comparisons whose outcome is known."""
    return kmeans(rows, clusters, iterations=rounds).centers


def first_centers(rows: Vectors, clusters: int) -> Vectors:
    """Those that ours starts from with seed 0."""
    order = np.empty(len(rows), dtype=np.int32)
    faiss.rand_perm(faiss.swig_ptr(order), len(rows), 1)  # type: ignore[attr-defined]
    return rows[order[:clusters]]


def lloyd(rows: Vectors, clusters: int, rounds: int) -> Vectors:
    """scikit-learn's plain k-means."""
    return full(rows, clusters, rounds, "lloyd")


def elkan(rows: Vectors, clusters: int, rounds: int) -> Vectors:
    """scikit-learn's k-means with bounds, one for each vector and center."""
    return full(rows, clusters, rounds, "elkan")


def full(
    rows: Vectors, clusters: int, rounds: int, algorithm: Literal["lloyd", "elkan"]
) -> Vectors:
    """scikit-learn's full k-means from the same first centers."""
    first = first_centers(rows, clusters)
    model = KMeans(clusters, init=first, n_init=1, max_iter=rounds, tol=0.0, algorithm=algorithm)
    centers: Vectors = model.fit(rows).cluster_centers_
    return centers


def mini_batch(rows: Vectors, clusters: int, rounds: int) -> Vectors:
    """scikit-learn's batches, each as large as there are clusters."""
    batch = min(len(rows), max(1024, clusters))
    model = MiniBatchKMeans(
        clusters,
        init="random",
        n_init=1,
        batch_size=batch,
        max_iter=rounds,
        max_no_improvement=None,
        tol=0.0,
        random_state=0,
    )
    centers: Vectors = model.fit(rows).cluster_centers_
    return centers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the vectors and clusters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--elkan", action="store_true", help="Elkan's form, too; many minutes")
    options = parser.parse_args()
    count, classes, clusters = (5_955, 1_132, 1_000) if options.quick else (59_551, 11_318, 10_000)
    rows = vectors(count, classes)
    contestants: dict[str, Callable[[Vectors, int, int], Vectors]] = {
        "cbml.index.kmeans": ours,
        "scikit-learn KMeans (Lloyd)": lloyd,
        "scikit-learn MiniBatchKMeans": mini_batch,
    }
    if options.elkan:
        contestants["scikit-learn KMeans (Elkan)"] = elkan
    threads = torch.get_num_threads()
    print(f"{count:,} x 128 in {clusters:,} clusters, {options.rounds} rounds, {threads} threads")
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    centers: dict[str, Vectors] = {}
    for _ in range(options.repeats):
        for name, run in contestants.items():
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early, all alike
                centers[name] = run(rows, clusters, options.rounds)
            seconds[name].append(time.perf_counter() - start)
    floor = min(seconds["scikit-learn KMeans (Lloyd)"])
    for name, times in seconds.items():
        spread = inertia(rows, centers[name])
        ratio = min(times) / floor
        print(f"{name:<30} {min(times):8.1f} s {ratio:6.2f} x   inertia {spread:10.0f}")
    reached = min(seconds["cbml.index.kmeans"]) / floor
    print(f"{reached:.2f} of the time of scikit-learn's Lloyd  (goal: at most {LIMIT})")
    if reached > LIMIT and not options.quick:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
