"""Exact pair statistics against counting the pairs, in one run.

`PairStatistics.of` never forms a pair. Counting forms all of them: blocks of 512 rows times all
rows in float32, then sums and sums of squares of positive and of all similarities in float64, with
the classes side by side, so that positives are found by slices and no mask is made. Counting
is done for some of the blocks, spread over the set, and its time is scaled up to all of them; the
statistics are always those of the whole set. Both make unit rows first. Two threads, medians.

Counted so, each pair comes in both orders, as in any product of a set with itself. Blocks above the
diagonal alone would count each pair once, in about half of the time: halve the ratio for that.

    python benchmarks/bayes.py [--quick]      a tenth of the images, for a look
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from cbml import PairStatistics, QueryGallery
from cbml.bayes import Pairs, pair_up

BLOCK, BLOCKS = 512, 12
GOAL = 20.0


def images(size: int, classes: int, dim: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    random = np.random.default_rng(0)
    labels = random.permutation(np.arange(size) % classes)
    centers = random.normal(size=(classes, dim)).astype(np.float32)
    rows = centers[labels] + 1.5 * random.normal(size=(size, dim)).astype(np.float32)
    return rows, labels


def count(pairs: Pairs, starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum and sum of squares of all and of positive similarities with these blocks of rows."""
    sums = np.zeros(4)
    ranges = pairs.ranges
    for start in starts.tolist():
        similarity = pairs.left[start : start + BLOCK] @ pairs.right.T
        sums[0] += similarity.sum(dtype=np.float64)
        sums[1] += np.square(similarity).sum(dtype=np.float64)
        first = int(np.searchsorted(ranges[:, 1], start, side="right"))
        for begin, end, _, _ in ranges[first:].tolist():
            if begin >= start + BLOCK:
                break
            rows = slice(max(begin - start, 0), min(end - start, BLOCK))
            part = similarity[rows, begin:end].astype(np.float64)
            sums[2:] += part.sum(), np.square(part).sum()
    return sums


def median(rounds: int, run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(2)
    size, classes, dim = (6_050, 1_132, 512) if quick else (60_502, 11_316, 512)
    rounds = 3
    rows, labels = images(size, classes, dim)
    pairs = pair_up(QueryGallery.of(rows, labels))
    every = np.arange(0, size, BLOCK)
    some = every[np.unique(np.linspace(0, len(every) - 1, BLOCKS).astype(np.int64))]
    prepare = median(rounds, lambda: pair_up(QueryGallery.of(rows, labels)))
    exact = median(rounds, lambda: PairStatistics.of(rows, labels))
    counted = prepare + median(rounds, lambda: count(pairs, some)) * len(every) / len(some)
    ratio = counted / exact
    print(f"{size} images of {classes} classes, {dim} dimensions")
    print(f"PairStatistics.of    {exact:8.2f} s")
    print(f"counting all pairs   {counted:8.2f} s   from {len(some)} of {len(every)} blocks")
    print(f"ratio                {ratio:8.1f}     goal {GOAL:.0f} at full size")
    print("counting takes both orders of each pair; each once would take about half of its time")
    if not quick and ratio < GOAL:
        sys.exit(1)


if __name__ == "__main__":
    main()
