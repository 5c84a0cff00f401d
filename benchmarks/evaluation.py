"""Time and memory of `evaluate` against its floor and against a peer, all in one run.

The floor is the bare product of all queries with the whole gallery, block by block. Two threads.
Contestants take turns; times are medians over the rounds. Memory is what the peak of a fresh
process rises above its size before the call. The embeddings are class centers and noise: a good
model, and a poor one, whose positives stand far down. Each ratio is of the whole call: checks,
scaling to unit length and sorting by class included. The poor model gets half of the set and the
peer a quarter, so that all is done in minutes; both sides of a ratio have the same.

    python benchmarks/evaluation.py [--quick]      a tenth of every size, for a look
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from cbml import evaluate
from cbml.evaluation import Scores, ranking

BLOCK = 512
GOOD, POOR = 2.2, 6.0  # the noise of a model
PEER_METRICS = ("precision_at_1", "r_precision", "mean_average_precision_at_r")


def images(size: int, classes: int, dim: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Unit rows around class centers that depend on the seed's hundreds only."""
    centers = torch.randn(classes, dim, generator=torch.Generator().manual_seed(seed // 100))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(size)[torch.randperm(size, generator=generator)] % classes
    embeddings = torch.randn(size, dim, generator=generator).mul_(noise)
    for start in range(0, size, 2**16):  # no second copy of the whole
        part = slice(start, start + 2**16)
        embeddings[part] += centers[labels[part]]
        embeddings[part] /= embeddings[part].norm(dim=1, keepdim=True)
    return embeddings, labels


def floor(queries: Tensor, gallery: Tensor) -> Callable[[], object]:
    block = max(2, min(BLOCK, 2**26 // len(gallery)))

    def run() -> None:
        buffer = torch.empty(block, len(gallery))
        for start in range(0, len(queries), block):
            part = queries[start : start + block]
            torch.mm(part, gallery.T, out=buffer[: len(part)])

    return run


def medians(contestants: list[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of each, taken in turns so that a busy machine hits all alike."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for _ in range(rounds):
        for place, contestant in enumerate(contestants):
            start = time.perf_counter()
            contestant()
            seconds[place].append(time.perf_counter() - start)
    return [statistics.median(values) for values in seconds]


def memory(line: str) -> int:
    """Bytes in one line of the process's status."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{line}:")[1].split()[0]) * 1024


def peak_growth(size: int, classes: int, dim: int) -> None:
    """Print how far the peak memory of this process rises in one evaluation."""
    torch.set_num_threads(2)
    embeddings, labels = images(size, classes, dim, GOOD, 0)
    evaluate(embeddings[:2000], labels[:2000] % 100, clustering=False)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = memory("VmRSS")
    evaluate(embeddings, labels, clustering=False)
    growth = memory("VmHWM") - before
    print(f"peak extra memory {growth / 2**20:.0f} MiB  (goal: under 1 GB)", flush=True)


def products(size: int, classes: int, dim: int, noise: float, rounds: int) -> None:
    """Against the bare product."""
    embeddings, labels = images(size, classes, dim, noise, 0)
    found: list[Scores] = []
    bare, recall, full = medians(
        [
            floor(embeddings, embeddings),
            lambda: evaluate(embeddings, labels, metrics=["recall@k"], clustering=False),
            lambda: found.append(evaluate(embeddings, labels, clustering=False)),
        ],
        rounds,
    )
    print(f"{size:,} × {dim} in {classes:,} classes, Recall@1 {found[0].metrics['recall@1']:.3f}")
    print(f"  the bare product            {bare:8.2f} s")
    print(f"  Recall@K                    {recall:8.2f} s  ratio {recall / bare:.2f}  (goal 1.6)")
    print(f"  and MAP@R, R-precision      {full:8.2f} s  ratio {full / bare:.2f}  (goal 2.2)")


def peer(size: int, classes: int, dim: int, rounds: int) -> None:
    """The same numbers from pytorch-metric-learning."""
    embeddings, labels = images(size, classes, dim, GOOD, 0)
    calculator = AccuracyCalculator(
        include=PEER_METRICS, k="max_bin_count", device=torch.device("cpu")
    )
    found: list[float | None] = []
    ours, theirs = medians(
        [
            lambda: found.append(evaluate(embeddings, labels, clustering=False).metrics["map@r"]),
            lambda: found.append(calculator.get_accuracy(embeddings, labels)[PEER_METRICS[2]]),
        ],
        rounds,
    )
    print(f"pytorch-metric-learning, at {size:,} × {dim} in {classes:,} classes")
    print(f"  cbml {ours:.2f} s, peer {theirs:.2f} s: {theirs / ours:.1f} times faster  (goal 3)")
    print(f"  MAP@R {found[0]:.6f}, peer {found[1]:.6f}")


def tie_rule(size: int, classes: int, dim: int, rounds: int) -> None:
    """What it costs that negatives within rounding of a positive rank before it."""
    rows, labels = images(size, classes, dim, GOOD, 0)
    usual, found = ranking.tie_slack, {}

    def run(slack: Callable[[int], float]) -> None:
        ranking.tie_slack = slack
        found[slack] = evaluate(rows, labels, clustering=False).metrics

    def none(dim: int) -> float:
        return 0.0

    with_rule, without = medians([lambda: run(usual), lambda: run(none)], rounds)
    ranking.tie_slack = usual
    print(
        f"ties within rounding, at {size:,} × {dim}: {with_rule / without:.2f} of the time without"
    )
    for name in ("recall@1", "map@r"):
        print(f"  {name} {found[usual][name]:.6f}, without {found[none][name]:.6f}")


def query_and_gallery(queries: int, gallery: int, classes: int, dim: int) -> None:
    """The ImageNet protocol, once: 500 unseen classes, queries and gallery apart."""
    embeddings, labels = images(queries, classes, dim, GOOD, 1)
    others, other_labels = images(gallery, classes, dim, GOOD, 2)
    bare, full = medians(
        [
            floor(embeddings, others),
            lambda: evaluate(
                embeddings,
                labels,
                gallery_embeddings=others,
                gallery_labels=other_labels,
                clustering=False,
            ),
        ],
        1,
    )
    print(f"{queries:,} queries × gallery of {gallery:,} × {dim}, {classes} classes, once")
    print(f"  bare product {bare:.1f} s; Recall@K, MAP@R and R-precision {full:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of every size")
    share = 0.1 if parser.parse_args().quick else 1.0
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    torch.set_num_threads(2)
    size, classes = int(60502 * share), int(11316 * share)  # SOP's test set
    evaluate(*images(1000, 100, 64, GOOD, 0), clustering=False)  # first calls are slow
    products(size, classes, 512, GOOD, 2)
    products(size // 2, classes // 2, 512, POOR, 1)
    process = multiprocessing.get_context("spawn").Process(
        target=peak_growth, args=(size, classes, 512)
    )
    process.start()
    process.join()
    peer(size // 4, classes // 4, 512, 1)
    tie_rule(size // 2, classes // 2, 512, 5)
    query_and_gallery(int(25000 * share), int(638878 * share), 500, 128)


if __name__ == "__main__":
    main()
