"""A training step of each method against the plain step: seconds in one run, and peak memory.

The plain step is CBML's on the same network, images and batch of 120, by `cbml.fit`. Seconds are
those of the processor, of all threads, which other work on the machine changes little. In each
round all methods and the plain step take turns; a ratio is the mean of the rounds' ratios, each to
the plain step of its own round. Batches are drawn and decoded in all alike; what a method does
before an epoch counts in the first step, which is not timed. Peak memory is that of a process of
its own after two steps, so that nothing of another method is counted.

    python benchmarks/methods.py                      seconds of every method with labels
    python benchmarks/methods.py --memory             peak memory instead
    python benchmarks/methods.py hdml deml            some of them
    python benchmarks/methods.py --quick hdml         few small batches, for a look
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from cbml.data import ImageDataset
from cbml.methods import METHODS
from cbml.runs import (
    RunConfig,
    build_batches,
    build_execution,
    build_method,
    build_model,
    load_splits,
)
from cbml.training import Callback, Distributed, Settings, StepReport, fit

STEPS, WARM = 4, 1
PLAIN, CLASSES = "plain", 150


class Clock(Callback):
    """Remembers at which second of the processor each step was done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def step(self, report: StepReport) -> None:
        """Note the time."""
        self.times.append(time.process_time())


def seconds_per_step(config: RunConfig, images: ImageDataset, steps: int = STEPS) -> float:
    """The median of a few steps, after some to warm up."""
    method = build_method(config, len(images.class_names), images=len(images))
    model, clock = build_model(config, method), Clock()
    fit(
        model,
        method,
        build_batches(config, images, Distributed()),
        settings=Settings(steps=WARM + steps),
        execution=build_execution(config, model),
        callback=clock,
    )
    times = clock.times[WARM - 1 :]
    return statistics.median(b - a for a, b in itertools.pairwise(times))


def some_images(config: RunConfig) -> ImageDataset:
    """Training images of some classes: those who cluster embed them all before the first step."""
    return load_splits(config).train.of_classes(range(CLASSES))


def peak_memory(name: str, quick: bool) -> float:
    """Gigabytes that a process of its own needs for two steps."""
    words = [sys.executable, __file__, "--peak", name, *(["--quick"] if quick else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def own_peak(config: RunConfig) -> float:
    """The peak of this process after two steps; not ru_maxrss, which a parent's peak may be."""
    seconds_per_step(config, some_images(config), steps=1)
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e6


def config_of(method: str, quick: bool) -> RunConfig:
    """Every run has the same network, crop and batch; the rest is the method's own."""
    sizes = {"classes_per_batch": 6 if quick else 30, "samples_per_class": 4}
    network = {"crop": 32, "backbone": "conv4"} if quick else {"crop": 64}
    plain = RunConfig("emoji", model=network, loss={"parameters": "given"}, training=sizes)
    return plain if method == PLAIN else plain.replace(method=method)


def summary(name: str, own: list[float], plain: list[float]) -> str:
    """One line: seconds of both, and how many times as long, with the range over the rounds."""
    ratios = [one / base for one, base in zip(own, plain, strict=True)]
    return (
        f"{name:<16} plain {statistics.mean(plain):6.3f} s, method {statistics.mean(own):6.3f} s, "
        f"{statistics.mean(ratios):5.2f} times ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    known = [name for name, entry in METHODS.items() if entry.labels == "known"]
    parser.add_argument("methods", nargs="*", choices=[[], *known], help="every one by default")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of seconds")
    parser.add_argument("--rounds", type=int, default=2, help="each with all methods")
    parser.add_argument("--quick", action="store_true", help="few small batches")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(own_peak(config_of(options.peak, options.quick)))
        return
    plain, names = config_of(PLAIN, options.quick), options.methods or known
    images = some_images(plain)
    build_batches(plain, images, Distributed())  # packs once; every later run finds it packed
    batch = plain.training.classes_per_batch * plain.training.samples_per_class
    print(
        f"emoji, {plain.model.backbone}, crop {plain.model.crop}, batch {batch}, "
        f"{torch.get_num_threads()} threads"
    )
    if options.memory:
        first = peak_memory(PLAIN, options.quick)
        for name in names:
            peak = peak_memory(name, options.quick)
            print(f"{name:<16} plain {first:5.2f} GB, method {peak:5.2f} GB", flush=True)
        return
    rounds = 1 if options.quick else options.rounds
    seconds: dict[str, list[float]] = {name: [] for name in (PLAIN, *names)}
    for turn, name in itertools.product(range(1, rounds + 1), seconds):
        seconds[name].append(seconds_per_step(config_of(name, options.quick), images))
        if turn == rounds and name != PLAIN:
            print(summary(name, seconds[name], seconds[PLAIN]), flush=True)


if __name__ == "__main__":
    main()
