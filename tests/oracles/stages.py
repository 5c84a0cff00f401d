"""Methods with stages and policies once more, literally, in plain loops over lists of numbers."""

from itertools import permutations
from math import exp, log, sqrt

from tests.oracles.baselines import Matrix, mean, unit

Pair = tuple[int, int]


def distance(a: list[float], b: list[float]) -> float:
    return sqrt(sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) + 1e-8)


def margin_terms(
    x: Matrix, positives: list[Pair], negatives: list[Pair], beta: list[float], margin: float
) -> list[float]:
    pull = [max(0.0, distance(x[i], x[j]) - beta[i] + margin) for i, j in positives]
    push = [max(0.0, beta[i] - distance(x[i], x[j]) + margin) for i, j in negatives]
    return [*pull, *push]


def margin(
    x: Matrix, positives: list[Pair], negatives: list[Pair], beta: list[float], margin: float
) -> float:
    terms = margin_terms(x, positives, negatives, beta, margin)
    active = sum(term > 0 for term in terms)
    return sum(terms) / active if active else 0.0


def nearest_pairs(x: Matrix, y: list[int], near: float) -> tuple[list[Pair], list[Pair]]:
    """All positives of each anchor, and as many negatives, as Divide-Conquer takes them."""
    positives, negatives = [], []
    for i in range(len(x)):
        own = [j for j in range(len(x)) if j != i and y[j] == y[i]]
        d = {j: distance(x[i], x[j]) for j in range(len(x)) if y[j] != y[i]}
        beyond = sorted((j for j in d if d[j] >= near), key=lambda j: d[j])
        nearer = sorted((j for j in d if d[j] < near), key=lambda j: -d[j])
        positives += [(i, j) for j in own]
        negatives += [(i, j) for j in (beyond + nearer)[: len(own)]]
    return positives, negatives


def log_inverse_density(d: float, dim: int, near: float) -> float:
    d = max(d, near)
    return -((dim - 2) * log(d) + (dim - 3) / 2 * log(1 - d * d / 4))


def renumbered(previous: list[int], current: list[int], clusters: int) -> int:
    """How many images keep their number under the best of all assignments."""
    best = 0
    for number in permutations(range(clusters)):
        kept = sum(number[now] == before for before, now in zip(previous, current, strict=True))
        best = max(best, kept)
    return best


def overlap(masks: Matrix) -> float:
    """The mean cosine of different masks behind a relu."""
    units = [unit([max(value, 0.0) for value in mask]) for mask in masks]
    pairs = [(i, j) for i in range(len(units)) for j in range(len(units)) if i != j]
    return mean([sum(a * b for a, b in zip(units[i], units[j], strict=True)) for i, j in pairs])


def decorrelation(source: Matrix, target: Matrix, layers: list[Matrix]) -> float:
    """A of MIC for an adversary of two layers without biases."""
    total, count = 0.0, 0
    for u, t in zip(source, target, strict=True):
        hidden = [
            max(0.0, sum(w * v for w, v in zip(row, unit(u), strict=True))) for row in layers[0]
        ]
        output = [sum(w * v for w, v in zip(row, hidden, strict=True)) for row in layers[1]]
        for a, b in zip(unit(t), unit(output), strict=True):
            total, count = total + (a * b) ** 2, count + 1
    return -total / count


def histogram_chances(d: list[float], edges: list[float], p: list[float]) -> list[float]:
    """How likely each row is to be drawn, by the bin of its distance."""
    weights = [p[sum(value > edge for edge in edges[1:-1])] for value in d]
    return [weight / sum(weights) for weight in weights]


def policy_loss(
    new: Matrix, old: Matrix, actions: list[int], r: tuple[float, float], v: tuple[float, float]
) -> tuple[float, float]:
    """The loss of the policy and that of its value; logits are actions times bins."""
    sign = (r[1] > r[0]) - (r[1] < r[0])
    advantage = sign + 0.99 * v[1] - v[0]
    gains = []
    for b, a in enumerate(actions):
        ratio = softmax(new, b)[a] / softmax(old, b)[a]
        clipped = min(max(ratio, 0.8), 1.2)
        gains.append(min(ratio * advantage, clipped * advantage))
    return -mean(gains), 0.5 * (v[0] - r[1]) ** 2


def softmax(logits: Matrix, column: int) -> list[float]:
    powers = [exp(row[column]) for row in logits]
    return [power / sum(powers) for power in powers]


def smart_loss(
    near: list[float], far: list[float], m: float, gamma: float, weight: float, t: float
) -> float:
    """The triplet loss of squared distances, and the global loss of a quarter of them."""
    triplet = mean([max(0.0, 1 - b / (a + m)) for a, b in zip(near, far, strict=True)])
    small, large = [a / 4 for a in near], [b / 4 for b in far]
    spread = sum(mean([(d - mean(side)) ** 2 for d in side]) for side in (small, large))
    return triplet + gamma * (spread + weight * max(0.0, mean(small) - mean(large) + t))
