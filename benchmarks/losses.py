"""Time and memory of CBMLLoss against what a user would pick instead, all in one run.

Two threads, 512 dimensions, 8 images per class, forward and backward, medians of interleaved
repetitions. Memory is what the peak of a fresh process rises above its size before the step, the
gradient of the embeddings included.
"""

import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor

from cbml import CBMLLoss

DIM, PER_CLASS = 512, 8


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Embeddings with some class structure and labels in random order."""
    generator = torch.Generator().manual_seed(size)
    labels = (torch.arange(size) // PER_CLASS)[torch.randperm(size, generator=generator)]
    centers = torch.randn(size // PER_CLASS, DIM, generator=generator)
    embeddings = centers[labels] + 1.5 * torch.randn(size, DIM, generator=generator)
    return embeddings.requires_grad_(), labels


def step(loss: Callable[[Tensor, Tensor], Tensor], size: int) -> Callable[[], None]:
    embeddings, labels = batch(size)

    def run() -> None:
        embeddings.grad = None
        loss(embeddings, labels).backward()

    return run


def multi_similarity() -> Callable[[Tensor, Tensor], Tensor]:
    loss, miner = MultiSimilarityLoss(alpha=2, beta=50, base=0.5), MultiSimilarityMiner(epsilon=0.1)
    return lambda embeddings, labels: loss(embeddings, labels, miner(embeddings, labels))


def loop_over_anchors(embeddings: Tensor, labels: Tensor) -> Tensor:
    """The loss anchor by anchor through autograd, as one writes it down first."""
    unit = torch.nn.functional.normalize(embeddings)
    similarity = unit @ unit.T
    total = embeddings.new_zeros(())
    for i in range(len(labels)):
        same = labels == labels[i]
        negatives = similarity[i][~same]
        same[i] = False
        positives = similarity[i][same]
        hard_positives = positives[positives < negatives.max() + 0.1]
        hard_negatives = negatives[negatives > positives.min() - 0.1]
        target = 0.2 * positives.mean() + 0.8 * negatives.mean()
        total = total + torch.log1p(torch.exp((0.5 - hard_positives) / 0.5).sum())
        total = total + torch.log1p(torch.exp((hard_negatives - 1.0) / 0.01).sum())
        total = total + (negatives - target).square().mean()
    return total / len(labels)


def floor(size: int) -> Callable[[], None]:
    """The product of all similarities and the one product that their gradient needs."""
    embeddings, _ = batch(size)
    unit = torch.nn.functional.normalize(embeddings.detach())

    def run() -> None:
        similarity = unit @ unit.T
        similarity @ unit

    return run


def medians(contestants: list[Callable[[], None]], repetitions: int) -> list[float]:
    """Median seconds of each, taken in turns so that a busy machine hits all alike."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for contestant in contestants:
        contestant()
    for _ in range(repetitions):
        for place, contestant in enumerate(contestants):
            start = time.perf_counter()
            contestant()
            seconds[place].append(time.perf_counter() - start)
    return [statistics.median(values) for values in seconds]


def compare(
    name: str, ours: Callable[[], None], peer: Callable[[], None], repetitions: int
) -> tuple[float, float]:
    our_time, peer_time = medians([ours, peer], repetitions)
    print(f"{name:<58} {our_time * 1e3:9.2f} ms {peer_time * 1e3:9.2f} ms", end="  ")
    return our_time, peer_time


def memory(line: str) -> int:
    """Bytes in one line of the process's status."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{line}:")[1].split()[0]) * 1024


def peak_growth(size: int) -> None:
    """Print how far the peak memory of this process rises in one step."""
    torch.set_num_threads(2)
    run, warm_up = step(CBMLLoss(), size), step(CBMLLoss(), 64)
    warm_up()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = memory("VmRSS")
    run()
    growth = memory("VmHWM") - before
    matrices = growth / (4 * size * size)
    print(f"peak extra memory, batch {size:<34,} {growth / 2**20:9.0f} MiB", end="")
    print(f"   = {matrices:.3f} B×B float32 matrices", flush=True)


def work_for_ever() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """One other busy process for each core."""
    context = multiprocessing.get_context("fork")
    count = len(os.sched_getaffinity(0))
    others = [context.Process(target=work_for_ever, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def main() -> None:
    torch.set_num_threads(2)
    print(f"{'':<58} {'cbml':>12} {'other':>12}")
    for size, goal in [(120, 0.6), (1024, 0.16)]:
        ours, peer = compare(
            f"pytorch-metric-learning multi-similarity, batch {size}",
            step(CBMLLoss(), size),
            step(multi_similarity(), size),
            101 if size == 120 else 31,
        )
        print(f"ratio {ours / peer:.3f}  (goal: at most {goal})", flush=True)
    ours, peer = compare(
        "a loop over anchors, batch 512", step(CBMLLoss(), 512), step(loop_over_anchors, 512), 5
    )
    print(f"{peer / ours:.0f} times faster  (goal: at least 30)", flush=True)
    for name, load, goal in [
        ("the floor (two matrix products), batch 4096", contextlib.nullcontext(), 1.4),
        ("the same beside one other busy process per core", busy_cores(), 2.5),
    ]:
        with load:
            ours, peer = compare(name, step(CBMLLoss(), 4096), floor(4096), 15)
        print(f"ratio {ours / peer:.2f}  (goal: at most {goal})", flush=True)
    context = multiprocessing.get_context("spawn")
    for size in [8192, 32768]:
        process = context.Process(target=peak_growth, args=(size,))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
