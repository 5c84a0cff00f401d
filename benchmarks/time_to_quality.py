"""Seconds until Recall@1 on unseen emoji classes reaches 45 and 50 %: ours and a plain loop.

The plain loop is what a careful user writes: a DataLoader over Pillow files with torchvision's
transforms and pytorch-metric-learning's MPerClassSampler, its multi-similarity loss with its miner,
Adam, and its AccuracyCalculator. Both train the same network from the same weights with the same
crop, batch and learning rate (the best of the leaderboard's three for either loss), and score all
unseen classes every 20 steps; that time counts. Each side runs in a process of its own, and ours
packs its images first.

    python benchmarks/time_to_quality.py
    python benchmarks/time_to_quality.py --quick    a lower goal, for a look
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import nn
from torch.utils.data import DataLoader
from training import Files, endless

from cbml import PairStatistics, RunConfig, evaluate, fit
from cbml.data import PackedDataset, Splits
from cbml.losses import WithProxies
from cbml.runs import build_batches, build_execution, build_model, load_splits
from cbml.training import Distributed, Settings, embed_dataset

RATE, EVERY, STEPS = 4e-4, 20, 400
CONFIG = RunConfig(
    "emoji",
    augmentation={"min_area": 0.5},
    model={"crop": 64},
    training={"classes_per_batch": 30, "samples_per_class": 4},
)


class Reached(Exception):
    """The last goal is reached."""


class Clock:
    """Notes when each goal is reached."""

    def __init__(self, goals: list[float]) -> None:
        self.start, self.goals, self.seconds = time.perf_counter(), goals, list[float]()

    def score(self, recall: float) -> None:
        """Compare a score with the goals."""
        passed = time.perf_counter() - self.start
        print(f"{passed:6.1f} s  Recall@1 {100 * recall:.1f}", file=sys.stderr)
        while len(self.seconds) < len(self.goals) and recall >= self.goals[len(self.seconds)]:
            self.seconds.append(passed)
        if len(self.seconds) == len(self.goals):
            raise Reached


def ours(splits: Splits, clock: Clock) -> None:
    model = build_model(CONFIG).eval()
    train, test = (PackedDataset.of(part, 64) for part in (splits.train, splits.test))
    start = embed_dataset(model, train)
    pairs = PairStatistics.of(start, splits.train.known_labels).suggest_loss()
    classes = len(splits.train.class_names)
    loss = WithProxies(pairs, num_classes=classes, embedding_size=model.dim)

    def validate(model: nn.Module) -> dict[str, float]:
        vectors = embed_dataset(model, test)
        recall = evaluate(vectors, splits.test.known_labels, clustering=False).metrics["recall@1"]
        clock.score(recall)
        return {"recall@1": recall}

    fit(
        model,
        loss,
        build_batches(CONFIG, splits.train, Distributed()),
        settings=Settings(steps=STEPS, learning_rate=RATE, validate_every=EVERY),
        validate=validate,
        execution=build_execution(CONFIG, model),
    )


def plain(splits: Splits, clock: Clock) -> None:
    model = build_model(CONFIG)
    loss, miner = MultiSimilarityLoss(), MultiSimilarityMiner()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=5e-4)
    labels = splits.train.known_labels
    sampler = MPerClassSampler(labels, 4, 120, length_before_new_iter=len(labels))
    files = Files(splits.train, CONFIG, min_area=0.5)
    loader = DataLoader(files, 120, sampler=sampler, num_workers=1, drop_last=True)
    unseen = DataLoader(Files(splits.test, CONFIG, train=False), 120, num_workers=1)
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1)
    for step, (pixels, classes) in enumerate(endless(loader)):
        if step % EVERY == 0:
            model.eval()
            with torch.inference_mode():
                pairs = [(model(images), targets) for images, targets in unseen]
            rows, targets = (torch.cat(part) for part in zip(*pairs, strict=True))
            clock.score(calculator.get_accuracy(rows, targets)["precision_at_1"])
            model.train()
        if step == STEPS:
            return
        rows = model(pixels)
        optimizer.zero_grad()
        loss(rows, classes, miner(rows, classes)).backward()
        optimizer.step()


def child(side: str, goals: list[float]) -> None:
    """Run one side and print the seconds as JSON."""
    clock, splits = Clock(goals), load_splits(CONFIG)
    with contextlib.suppress(Reached):
        (ours if side == "ours" else plain)(splits, clock)
    print(json.dumps(clock.seconds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a lower goal")
    parser.add_argument("--side", choices=("ours", "plain"), help="run this one in this process")
    options = parser.parse_args()
    goals = [0.38] if options.quick else [0.45, 0.50]
    if options.side:
        child(options.side, goals)
        return
    seconds: dict[str, list[float]] = {}
    for side in ("plain", "ours"):
        with tempfile.TemporaryDirectory() as cache:
            words = [sys.executable, __file__, "--side", side, *["--quick"] * options.quick]
            environment = {**os.environ, "CBML_CACHE": cache}  # nothing is packed beforehand
            done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True)
        seconds[side] = json.loads(done.stdout)
    for number, goal in enumerate(goals):
        both = [seconds[side][number : number + 1] for side in ("plain", "ours")]
        said = " and ".join(f"{part[0]:.0f} s" if part else "not reached" for part in both)
        ratio = f", {both[1][0] / both[0][0]:.2f} of its time (goal 0.5)" if all(both) else ""
        print(f"Recall@1 {100 * goal:.0f} %: plain loop and ours {said}{ratio}")


if __name__ == "__main__":
    main()
