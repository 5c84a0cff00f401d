"""One good loss in a plain torch loop: no trainer, no configuration.

The images here are colored noise, so that the script runs anywhere in a second; put your own
network and your own batches in their places. A batch must hold several images of each class:
`ClassBalancedSampler` draws such batches from any list of labels.
"""

import argparse

import torch
from torch import Tensor, nn

from cbml import CBMLLoss, ClassBalancedSampler, evaluate


def images(classes: int, each: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise around one color for each class, and the class of each image."""
    generator = torch.Generator().manual_seed(seed)
    colors = torch.rand(classes, 3, 1, 1, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    noise = torch.randn(len(labels), 3, 16, 16, generator=generator)
    return colors[labels] + noise, labels


def train(network: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> list[float]:
    """The loop: every line of it is torch, but two."""
    loss = CBMLLoss.paper("sop")
    sampler = ClassBalancedSampler(
        labels.numpy(), classes_per_batch=16, samples_per_class=4, seed=0
    )
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=1e-3)
    values = []
    for _ in range(epochs):
        for batch in sampler:
            value = loss(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            values.append(value.item())
    return values


def main() -> None:
    """Learn from some colors, search among others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 16)
    )
    unseen, truth = images(classes=20, each=8, seed=1)
    with torch.no_grad():
        before = evaluate(network(unseen), truth, clustering=False).metrics["recall@1"]
    values = train(network, *images(classes=40, each=8, seed=0), options.epochs)
    with torch.no_grad():
        after = evaluate(network(unseen), truth, clustering=False).metrics["recall@1"]
    print(f"loss {values[0]:.3f} at the first step, {values[-1]:.3f} at the last")
    print(f"Recall@1 among colors never seen: {before:.1%} before, {after:.1%} after")


if __name__ == "__main__":
    main()
