"""The formulas of methods once more, literally, in plain loops over lists of numbers."""

from collections.abc import Callable
from colorsys import rgb_to_hsv
from math import dist, exp, floor, log

from tests.oracles.baselines import Matrix, cosines, dot, mean, softplus, unit

Pair = tuple[int, int]


def hard_contrastive(x: Matrix, y: list[int], margin: float, factor: float, share: float) -> float:
    """One level of HDC that chooses by its own losses."""
    pull, push = hdc_losses(x, y, margin, factor)
    return hdc_mean(top(pull, share), top(push, share))


def hdc_losses(
    x: Matrix, y: list[int], margin: float, factor: float
) -> tuple[dict[Pair, float], dict[Pair, float]]:
    pull, push = {}, {}
    for i in range(len(x)):
        for j in range(len(x)):
            square = dist(x[i], x[j]) ** 2
            if y[i] != y[j]:
                push[i, j] = factor * max(0.0, margin - square)
            elif i < j and square > 0:
                pull[i, j] = square
    return pull, push


def top(losses: dict[Pair, float], share: float) -> dict[Pair, float]:
    """The largest of them."""
    order = sorted(losses, key=lambda pair: -losses[pair])
    return {pair: losses[pair] for pair in order[: floor(share * len(losses) + 1e-6)]}


def hdc_mean(pull: dict[Pair, float], push: dict[Pair, float]) -> float:
    kept = [*pull.values(), *push.values()]
    active = [loss for loss in kept if loss > 0]
    return sum(kept) / len(active) if active else 0.0


def nested_hdc(
    levels: list[Matrix], y: list[int], margin: float, factor: float, shares: list[float]
) -> float:
    """The cascade of the paper: a level passes its hardest pairs on to the next."""
    total = 0.0
    pull_pairs: set[Pair] | None = None
    push_pairs: set[Pair] | None = None
    for number, x in enumerate(levels):
        pull, push = hdc_losses(x, y, margin, factor)
        if pull_pairs is None or push_pairs is None:
            pull, push = top(pull, shares[0]), top(push, shares[0])
        else:
            pull = {pair: pull[pair] for pair in pull if pair in pull_pairs}
            push = {pair: push[pair] for pair in push if pair in push_pairs}
        total += hdc_mean(pull, push)
        if number + 1 < len(levels):
            pull_pairs = set(top(pull, shares[number + 1]))
            push_pairs = set(top(push, shares[number + 1]))
    return total


def cosine_contrastive(x: Matrix, y: list[int], threshold: float) -> float:
    """The pair loss of HORDE."""
    s = cosines(x, x)
    pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if i != j]
    pull = [(s[i][j] - 1.0) ** 2 / 2.0 for i, j in pairs if y[i] == y[j]]
    push = [s[i][j] - threshold for i, j in pairs if y[i] != y[j] and s[i][j] > threshold]
    return mean(pull) + mean(push) / 2.0


def moment(places: Matrix, projections: list[Matrix], order: int) -> list[float]:
    """The mean over places of the products of as many projections as the order says."""
    total = [0.0] * len(projections[0])
    for place in places:
        for number in range(len(total)):
            product = 1.0
            for projection in projections[:order]:
                product *= dot(projection[number], place)
            total[number] += product / len(places)
    return total


def bier(
    learners: list[Matrix], y: list[int], form: str, eta: float | None = None, cost: float = 25.0
) -> list[float]:
    """The loss of each learner of BIER, with α = 2 and β = 0.5."""
    eta = {"simple": 0.06, "gradient": 1.0}[form] if eta is None else eta
    count = len(y)
    same = sum(y[i] == y[j] for i in range(count) for j in range(count))
    found = [0.0] * len(learners)
    for i in range(count):
        for j in range(count):
            if i == j:
                continue
            alike = y[i] == y[j]
            sign, share = (1.0, 1.0 / same) if alike else (-cost, 1.0 / (count**2 - same))
            weight, score = 1.0, 0.5 if form == "simple" else 0.0
            for number, x in enumerate(learners, start=1):
                similarity = dot(x[i], x[j])
                margin = 2.0 * (similarity - 0.5) * sign
                found[number - 1] += share * weight * softplus(-margin)
                if form == "simple":
                    score += eta * margin
                    weight = (1.0 if alike else 2.0) / (1.0 + exp(score))
                else:
                    step = 2.0 / (number + 1.0)
                    score = (1.0 - step) * score + step * eta * similarity
                    weight = 1.0 / (1.0 + exp(2.0 * (score - 0.5) * sign))
    return found


def hdml_pulled(a: list[float], p: list[float], n: list[float], average: float) -> list[float]:
    """A negative of HDML, pulled to the anchor, with α = 90."""
    own, away = dist(a, p), dist(a, n)
    if own >= away:
        return n
    wanted = own + exp(-90.0 / average) * (away - own)
    return [x + (y - x) * wanted / away for x, y in zip(a, n, strict=True)]


def n_pair(anchors: Matrix, candidates: list[Matrix], r: float) -> float:
    """The N-pair loss of HDML: an anchor's positive is the one of its own number."""
    costs = []
    for i, anchor in enumerate(anchors):
        logits = [dot(anchor, candidate) for candidate in candidates[i]]
        costs.append(log(sum(exp(logit) for logit in logits)) - logits[i])
    lengths = mean([dot(a, a) for a in anchors])
    lengths += mean([dot(p, p) for row in candidates for p in row])
    return mean(costs) + r / 4.0 * lengths


def related_branches(
    rows: Matrix,
    sources: Matrix,
    targets: Matrix,
    score: tuple[list[float], float],
    integrate: tuple[Matrix, list[float]],
) -> list[float]:
    """The head of DRML for one image, from the branches' outputs and the relations' q and t."""
    count, width = len(rows), len(rows[0])
    units = [unit(row) for row in rows]
    found: list[float] = []
    for j in range(count):
        scores = []
        for i in range(count):
            gap = [q - t for q, t in zip(sources[i], targets[j], strict=True)]
            scores.append(max(0.0, dot(score[0], gap) + score[1]))
        total = max(sum(scores), 1e-12)
        told = [sum(scores[i] / total * units[i][d] for i in range(count)) for d in range(width)]
        both = [*units[j], *told]
        found += [dot(row, both) + bias for row, bias in zip(*integrate, strict=True)]
    return found


def reconstruction_errors(features: Matrix, decoded: list[Matrix]) -> Matrix:
    """What each branch of DRML loses of each image, of equal pieces of the features."""
    size = len(features[0]) // len(decoded)
    found = []
    for n, row in enumerate(features):
        pieces = [row[k * size : (k + 1) * size] for k in range(len(decoded))]
        found.append([dist(piece, decoded[k][n]) ** 2 / size for k, piece in enumerate(pieces)])
    return found


def inverse_densities(x: Matrix, y: list[int], anchor: int, near: float = 0.5) -> list[float]:
    """The shares with which an anchor draws its negatives by distance."""
    width, weights = len(x[0]), []
    for row, label in zip(x, y, strict=True):
        d = max(near, dist(x[anchor], row))
        density = d ** (width - 2) * (1.0 - d * d / 4.0) ** ((width - 3) / 2.0)
        weights.append(0.0 if label == y[anchor] else 1.0 / density)
    return [weight / sum(weights) for weight in weights]


def composites(
    parts: list[Matrix], gates: list[tuple[Matrix, list[float]]]
) -> tuple[list[Matrix], float]:
    """The composites of DCML, and how unsure its gates are."""
    found: list[Matrix] = []
    unsure = 0.0
    for layer, bias in gates:
        rows = []
        for n in range(len(parts[0])):
            seen = [value for part in parts for value in part[n]]
            odds = [exp(dot(row, seen) + b) for row, b in zip(layer, bias, strict=True)]
            p = [odd / sum(odds) for odd in odds]
            width = range(len(parts[0][n]))
            rows.append([sum(p[k] * parts[k][n][d] for k in range(len(parts))) for d in width])
            unsure -= log(max(p)) / len(parts[0])
        found.append(rows)
    return found, unsure


def agreement(
    source: Matrix,
    target: Matrix,
    first: Matrix,
    second: Matrix,
    first_bias: list[float] | None = None,
    second_bias: list[float] | None = None,
) -> float:
    """What a network of one hidden layer guesses of a target, squared; in minus."""
    squares = []
    for u, t in zip(source, target, strict=True):
        b, c = first_bias or [0.0] * len(first), second_bias or [0.0] * len(second)
        hidden = [max(0.0, dot(row, u) + bias) for row, bias in zip(first, b, strict=True)]
        guess = unit([dot(row, hidden) + bias for row, bias in zip(second, c, strict=True)])
        squares += [(one * other) ** 2 for one, other in zip(t, guess, strict=True)]
    return -mean(squares)


def decoupling(first: Matrix, second: Matrix) -> float:
    """The hinge of DeML that pushes two embeddings of an image apart."""
    hinges = [max(0.0, 2.0 - dist(u, v)) ** 2 for u, v in zip(first, second, strict=True)]
    return mean(hinges) / 2.0


def activity(x: Matrix, w: Matrix) -> float:
    """The weight term of DeML."""
    outputs = [dot(row, features) ** 2 for features in x for row in w]
    return mean(outputs) + mean([(dot(row, row) - 1.0) ** 2 for row in w]) / 2.0


def neighbor_mix(z: Matrix, count: int, edge: Callable[[int, int], float]) -> Matrix:
    """The embeddings of LSCM-GNN, from unit rows and the weight of each edge."""
    found = []
    for i, row in enumerate(z):
        others = sorted((j for j in range(len(z)) if j != i), key=lambda j: (-dot(row, z[j]), j))
        total = list(row)
        for j in others[:count]:
            total = [a + edge(i, j) * b for a, b in zip(total, z[j], strict=True)]
        length = dot(total, total) ** 0.5
        found.append([value / length for value in total])
    return found


def hsv_bin(red: int, green: int, blue: int, bins: tuple[int, int, int]) -> int:
    """The bin of a color, by the standard library's conversion."""
    shares = rgb_to_hsv(red / 255.0, green / 255.0, blue / 255.0)
    place = 0
    for share, count in zip(shares, bins, strict=True):
        place = place * count + min(count - 1, floor(share * count + 1e-9))
    return place
