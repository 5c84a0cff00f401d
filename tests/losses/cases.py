"""Generated batches and settings, corner cases among them, each with its literal oracle."""

import random
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cbml import CBMLLoss, LinearRatio, QuadraticRatio
from tests.oracles import contrastive_bayesian as literal

KINDS = [
    "ordinary",
    "no positives",
    "no negatives",
    "one image",
    "two images",
    "duplicates",
    "opposite",
    "collapsed",
    "separated",
    "huge and tiny lengths",
    "one large class",
]


def make_batch(kind: str, chance: random.Random) -> tuple[Tensor, Tensor]:
    """Embeddings in float64 and labels of one kind."""
    generator = torch.Generator().manual_seed(chance.getrandbits(40))
    size = {"one image": 1, "two images": 2}.get(kind, chance.randint(2, 14))
    dim = chance.choice([2, 3, 8])
    labels = torch.randint(0, chance.randint(1, 5), (size,), generator=generator) * 7 - 3
    if kind == "no positives":
        labels = torch.randperm(size, generator=generator)
    elif kind == "no negatives":
        labels = torch.full((size,), 5)
    elif kind == "one large class":
        labels[: size - size // 4] = 1
    rows = torch.randn(size, dim, dtype=torch.float64, generator=generator)
    if kind == "duplicates":
        rows = rows[torch.randint(0, max(1, size // 2), (size,), generator=generator)]
    elif kind == "opposite":
        rows = rows[:1] * torch.where(rows[:, :1] > 0, 1.0, -1.0)
    elif kind == "collapsed":
        rows = rows[:1] + 1e-3 * rows
    elif kind == "separated":
        rows = torch.eye(32, dtype=torch.float64)[labels % 32] + 0.05 * torch.randn(
            size, 32, dtype=torch.float64, generator=generator
        )
    elif kind == "huge and tiny lengths":
        rows = rows * 10.0 ** torch.randint(-12, 13, (size, 1), generator=generator)
    return rows, labels


@dataclass(frozen=True)
class Setting:
    """One choice of every option, as the loss takes it and as the oracle takes it."""

    loss: CBMLLoss
    oracle: literal.Oracle


def make_setting(chance: random.Random) -> Setting:
    averaging: Literal["log", "sqrt", "const"] = chance.choice(["log", "log", "sqrt", "const"])
    delta: float | Literal["derived", "mean"] = chance.choice([1.0, 0.25, "derived", "mean"])
    omega = chance.choice([1.0, 1.0, 0.0, 3.5])
    epsilon = chance.choice([0.1, 0.1, 0.0, 0.5, -0.2, None])
    weight, gamma = chance.choice([0.0, 0.001, 1.0, 20.0]), chance.choice([0.0, 0.2, 0.5, 1.0])
    reduction: Literal["mean", "sum"] = chance.choice(["mean", "sum"])
    skip = chance.random() < 0.4
    ratio: LinearRatio | QuadraticRatio
    if chance.random() < 0.7:
        numbers = chance.choice(
            [
                (0.5, 0.5, 1.0, 0.01),
                (0.5, 0.25, 0.5, 0.05),
                (0.2, 1.0, 0.3, 2.0),
                (0.4, 0.1, 0.4, 0.1),
            ]
        )
        ratio = LinearRatio(
            positive_center=numbers[0],
            positive_scale=numbers[1],
            negative_center=numbers[2],
            negative_scale=numbers[3],
        )
        phi_p, phi_n = literal.linear(*numbers)
    else:
        numbers = chance.choice(
            [
                (0.6, 0.25, 0.1, 0.2),
                (0.5, 0.2, 0.2, 0.3),
                (0.7, 0.3, 0.1, 0.3),
                (0.2, 0.3, 0.6, 0.3),
                (0.4, 0.3, 0.4, 0.3),
            ]
        )
        ratio = QuadraticRatio(
            positive_mean=numbers[0],
            positive_std=numbers[1],
            negative_mean=numbers[2],
            negative_std=numbers[3],
        )
        phi_p, phi_n = literal.gaussian(*numbers)
    loss = CBMLLoss(
        ratio=ratio,
        averaging=averaging,
        delta=delta,
        mining_margin=epsilon,
        positive_weight=omega,
        variance_weight=weight,
        target_mix=gamma,
        variance_reduction=reduction,
        skip_easy_anchors=skip,
    )
    oracle = literal.Oracle(
        phi_p, phi_n, averaging, delta, epsilon, weight, gamma, reduction, skip, omega
    )
    return Setting(loss, oracle)


def distance_from_an_edge(rows: Tensor, labels: Tensor, epsilon: float | None) -> float:
    """How far the nearest pair is from the edge of a hard set, where rounding decides."""
    nearest = float("inf")
    if epsilon is None:
        return nearest
    unit = torch.nn.functional.normalize(rows)
    similarity, same = unit @ unit.T, labels[:, None] == labels[None, :]
    for i in range(len(rows)):
        negatives, others = similarity[i][~same[i]], same[i].clone()
        others[i] = False
        positives = similarity[i][others]
        if len(positives) and len(negatives):
            for gap in (
                positives - negatives.max() - epsilon,
                negatives - positives.min() + epsilon,
            ):
                nearest = min(nearest, float(gap.abs().min()))
    return nearest
