"""Seconds of a training step of each method against the plain step, all in one run.

The plain step is CBML's on the same network, images and batch of 120, by `cbml.fit`; methods and
the plain step take turns, and the ratio is that of the medians. Batches are drawn and decoded in
both alike.

    python benchmarks/methods.py                      every method with labels
    python benchmarks/methods.py hdml deml            some of them
    python benchmarks/methods.py --quick hdml         few small batches, for a look
"""

import argparse
import itertools
import statistics
import time

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

STEPS, WARM, ROUNDS = 5, 2, 3


class Clock(Callback):
    """Remembers when each step was done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def step(self, report: StepReport) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())


def seconds_per_step(config: RunConfig, images: ImageDataset) -> float:
    """The median of a few steps, after some to warm up."""
    method = build_method(config, len(images.class_names), images=len(images))
    model, clock = build_model(config, method), Clock()
    fit(
        model,
        method,
        build_batches(config, images, Distributed()),
        settings=Settings(steps=WARM + STEPS),
        execution=build_execution(config, model),
        callback=clock,
    )
    times = clock.times[WARM - 1 :]
    return statistics.median(b - a for a, b in itertools.pairwise(times))


def config_of(method: str | None, quick: bool) -> RunConfig:
    sizes = {"classes_per_batch": 6 if quick else 30, "samples_per_class": 4}
    network = {"crop": 32, "backbone": "conv4"} if quick else {"crop": 64}
    plain = RunConfig("emoji", model=network, loss={"parameters": "given"}, training=sizes)
    return plain if method is None else plain.replace(method=method)


def main() -> None:
    parser = argparse.ArgumentParser()
    known = [name for name, entry in METHODS.items() if entry.labels == "known"]
    parser.add_argument("methods", nargs="*", choices=[[], *known], help="every one by default")
    parser.add_argument("--quick", action="store_true", help="few small batches")
    options = parser.parse_args()
    plain = config_of(None, options.quick)
    images = load_splits(plain).train
    build_batches(plain, images, Distributed())  # packs once; every later run finds it packed
    batch = plain.training.classes_per_batch * plain.training.samples_per_class
    print(
        f"emoji, {plain.model.backbone}, crop {plain.model.crop}, batch {batch}, "
        f"{torch.get_num_threads()} threads"
    )
    for name in options.methods or known:
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(1 if options.quick else ROUNDS):
            for place, method in enumerate((None, name)):
                config = config_of(method, options.quick)
                seconds[place].append(seconds_per_step(config, images))
        before, after = map(statistics.median, seconds)
        print(
            f"{name:<16} plain {before:7.3f} s, method {after:7.3f} s, {after / before:5.2f} times",
            flush=True,
        )


if __name__ == "__main__":
    main()
