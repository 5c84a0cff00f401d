"""Pair statistics, posteriors, calibration: each formula once more, in plain loops."""

import math
from collections.abc import Sequence

Row = Sequence[float]


def cosine(first: Row, second: Row) -> float:
    product = sum(a * b for a, b in zip(first, second, strict=True))
    lengths = [math.sqrt(sum(a * a for a in row)) for row in (first, second)]
    return product / (lengths[0] * lengths[1])


def similarities(
    rows: Sequence[Row],
    labels: Sequence[object],
    gallery_rows: Sequence[Row] | None = None,
    gallery_labels: Sequence[object] | None = None,
) -> tuple[list[float], list[float]]:
    """Of all positive and of all negative pairs; within one set each pair once."""
    positive, negative = [], []
    for i in range(len(rows)):
        others = range(i + 1, len(rows)) if gallery_rows is None else range(len(gallery_rows))
        for j in others:
            other = rows[j] if gallery_rows is None else gallery_rows[j]
            label = labels[j] if gallery_labels is None else gallery_labels[j]
            (positive if labels[i] == label else negative).append(cosine(rows[i], other))
    return positive, negative


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def std(values: Sequence[float]) -> float:
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / len(values))


def gaussian(value: float, middle: float, spread: float) -> float:
    return math.exp(-((value - middle) ** 2) / (2 * spread**2)) / (spread * math.sqrt(2 * math.pi))


def posterior_same(s: float, same: Row, different: Row, odds: float) -> float:
    """1 / (1 + Φ_P / Θ), with Φ_P = p[s | different] / p[s | same]; (mean, std) of each."""
    ratio = gaussian(s, *different) / gaussian(s, *same)
    return 1 / (1 + ratio / odds)


def posterior_different(s: float, same: Row, different: Row, odds: float) -> float:
    """1 / (1 + Φ_N Θ), with Φ_N = p[s | same] / p[s | different]."""
    ratio = gaussian(s, *same) / gaussian(s, *different)
    return 1 / (1 + ratio * odds)


def pull(s: float, count: int, omega: float, alpha: float, beta: float) -> float:
    """ω ∂/∂s of log(1 + Σ Φ_P / |P|) for `count` positives that are all at s, per unit of s."""
    terms = [math.exp((alpha - s) / beta) / count for _ in range(count)]
    return omega * sum(terms) / (1 + sum(terms)) / beta


def push(s: float, count: int, alpha: float, beta: float) -> float:
    """∂/∂s of log(1 + Σ Φ_N / |N|) for `count` negatives that are all at s, per unit of s."""
    terms = [math.exp((s - alpha) / beta) / count for _ in range(count)]
    return sum(terms) / (1 + sum(terms)) / beta


def kolmogorov(values: Sequence[float], middle: float, spread: float) -> float:
    """Largest gap between the share of values up to a place and the Gaussian's."""
    ordered = sorted(values)
    largest = 0.0
    for number, value in enumerate(ordered):
        below = 0.5 * (1 + math.erf((value - middle) / (spread * math.sqrt(2))))
        largest = max(largest, abs(number / len(ordered) - below))
        largest = max(largest, abs((number + 1) / len(ordered) - below))
    return largest


def never_falling(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest sequence in weighted squares that never falls: pool neighbors that do."""
    pools: list[list[float]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            last, before = pools.pop(), pools.pop()
            total = last[1] + before[1]
            middle = (last[0] * last[1] + before[0] * before[1]) / total
            pools.append([middle, total, last[2] + before[2]])
    return [pool[0] for pool in pools for _ in range(int(pool[2]))]


def calibration(
    probabilities: Sequence[float], matches: Sequence[bool], bins: int
) -> tuple[float, float, float]:
    """ECE, Brier score and log loss."""
    total, ece = len(probabilities), 0.0
    for number in range(bins):
        inside = [
            (p, match)
            for p, match in zip(probabilities, matches, strict=True)
            if min(int(p * bins), bins - 1) == number
        ]
        if inside:
            said = mean([p for p, _ in inside])
            seen = mean([float(match) for _, match in inside])
            ece += len(inside) / total * abs(said - seen)
    pairs = list(zip(probabilities, matches, strict=True))
    brier = mean([(p - match) ** 2 for p, match in pairs])
    return ece, brier, mean([-math.log(p if match else 1 - p) for p, match in pairs])
