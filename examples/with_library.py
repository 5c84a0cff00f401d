"""CBML inside pytorch-metric-learning: its miner, its memory of earlier batches, its scores.

`CBMLLoss` is called like every loss of that library, so a miner's pairs go in as they are. The
memory asks for a class of the library's own, which `cbml.losses.interop` provides.
"""

import argparse

import torch
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn

from cbml import CBMLLoss
from cbml.losses import CrossBatchMemory


def batch(classes: int, each: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points around one center for each of some classes drawn from a hundred."""
    centers = torch.randn(100, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.randperm(100, generator=generator)[:classes].repeat_interleave(each)
    return centers[labels] + torch.randn(len(labels), 32, generator=generator), labels


def train(network: nn.Module, steps: int) -> list[float]:
    """The loss on pairs that the library's miner chose, and once more against earlier batches."""
    generator = torch.Generator().manual_seed(1)
    loss, miner = CBMLLoss.paper("sop"), MultiSimilarityMiner(epsilon=0.1)
    memory = CrossBatchMemory(CBMLLoss.paper("sop"), embedding_size=16, memory_size=256)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    values = []
    for _ in range(steps):
        points, labels = batch(16, 4, generator)
        embeddings = network(points)
        value = loss(embeddings, labels, miner(embeddings, labels)) + memory(embeddings, labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    return values


def main() -> None:
    """Train and let the library score it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.manual_seed(0)
    network = nn.Linear(32, 16)
    points, labels = batch(100, 6, torch.Generator().manual_seed(2))
    wanted = ("precision_at_1", "mean_average_precision_at_r")
    scores = AccuracyCalculator(include=wanted, k="max_bin_count")
    with torch.no_grad():
        before = scores.get_accuracy(network(points), labels)
    values = train(network, options.steps)
    with torch.no_grad():
        after = scores.get_accuracy(network(points), labels)
    print(f"loss {values[0]:.3f} at the first step, {values[-1]:.3f} at the last")
    for name, value in after.items():
        print(f"{name}: {before[name]:.1%} before, {value:.1%} after")


if __name__ == "__main__":
    main()
