"""Systems of the comparison tables that change a loss, once more in plain loops.

`x` are the embeddings, `y` their labels. Every function divides vectors by their length first.
"""

from collections.abc import Callable
from itertools import combinations
from math import acos, exp, log, log1p, sin, sqrt

from tests.oracles.baselines import (
    Matrix,
    Vector,
    cosines,
    distance,
    dot,
    mean,
    partners,
    softplus,
    unit,
)


def pairs_in_order(y: list[int]) -> list[int]:
    """The first of a class with its second, the third with its fourth; an odd one with itself."""
    found = list(range(len(y)))
    for label in set(y):
        members = [i for i in range(len(y)) if y[i] == label]
        for first, second in zip(members[::2], members[1::2], strict=False):
            found[first], found[second] = second, first
    return found


def terms(pull: list[float], push: list[float], alpha=2.0, beta=50.0, base=0.5) -> float:
    value = log1p(sum(exp(-alpha * (s - base)) for s in pull)) / alpha
    return value + log1p(sum(exp(beta * (s - base)) for s in push)) / beta


def minus(a: Vector, b: Vector) -> Vector:
    return [p - q for p, q in zip(a, b, strict=True)]


def kappa(anchor: Vector, positive: Vector, negative: Vector) -> float:
    return dot(unit(minus(unit(negative), unit(anchor))), unit(minus(unit(positive), unit(anchor))))


def multi_similarity_dr(x: Matrix, y: list[int], gamma=0.3, epsilon=0.1, base=0.5) -> float:
    s, p, n = partners(x, y, None, None)
    total = 0.0
    for i in range(len(x)):
        if not p[i] or not n[i]:
            continue
        hard_p = [j for j in p[i] if s[i][j] - epsilon < max(s[i][k] for k in n[i])]
        hard_n = [k for k in n[i] if s[i][k] + epsilon > min(s[i][j] for j in p[i])]
        push = []
        for k in hard_n:
            star = min(hard_p, key=lambda j: s[i][j])
            push.append(s[i][k] - gamma * kappa(x[i], x[star], x[k]))
        total += terms([s[i][j] for j in hard_p], push, base=base)
    return total / len(x)


def lines(x: Matrix, y: list[int], points: int) -> list[Matrix]:
    """The points of each image's own line, the image first."""
    other, found = pairs_in_order(y), []
    for i in range(len(x)):
        a, b = unit(x[i]), unit(x[other[i]])
        line = [a]
        for k in range(1, points + 1):
            line.append(unit([k * q + (points + 1 - k) * p for p, q in zip(a, b, strict=True)]))
        found.append(line)
    return found


def multi_similarity_ee(x: Matrix, y: list[int], points=2, epsilon=0.1) -> float:
    s, p, n = partners(x, y, None, None)
    line = lines(x, y, points)
    total = 0.0
    for i in range(len(x)):
        if not p[i] or not n[i]:
            continue
        top = {k: max(dot(a, b) for a in line[i] for b in line[k]) for k in n[i]}
        hard_p = [s[i][j] for j in p[i] if s[i][j] - epsilon < max(top.values())]
        hard_n = [v for v in top.values() if v + epsilon > min(s[i][j] for j in p[i])]
        total += terms(hard_p, hard_n)
    return total / len(x)


def selectively_contrastive_triplet(
    x: Matrix, y: list[int], z=None, w=None, weight=1.0, temperature=0.1, above=0.8
) -> float:
    s, p, n = partners(x, y, z, w)
    found = []
    for i in range(len(x)):
        pulled = [s[i][j] for j in p[i] if s[i][j] <= 0.9999]
        if not pulled or not n[i]:
            continue
        near, far = max(s[i][k] for k in n[i]), max(pulled)
        if near > far or near > above:
            found.append(weight * near)
        elif near < far and near < above:
            found.append(softplus((near - far) / temperature))
    return mean(found)


def distance_table(x: Matrix) -> Matrix:
    s = cosines(x, x)
    return [[0.0 if i == j else distance(s[i][j]) for j in range(len(x))] for i in range(len(x))]


def nmi(a: list[int], b: list[int]) -> float:
    def share(test: Callable[[int], bool]) -> float:
        return mean([float(test(i)) for i in range(len(a))])

    def entropy(values: list[int]) -> float:
        shares = [share(lambda i, v=v: values[i] == v) for v in set(values)]
        return -sum(p * log(p) for p in shares)

    if len(set(a)) == 1 or len(set(b)) == 1:
        return float(len(set(a)) == len(set(b)))
    information = 0.0
    for u in set(a):
        for v in set(b):
            both = share(lambda i, u=u, v=v: a[i] == u and b[i] == v)
            alone = share(lambda i, u=u: a[i] == u) * share(lambda i, v=v: b[i] == v)
            information += both * log(both / alone) if both else 0.0
    return information / sqrt(entropy(a) * entropy(b))


def nearest(d: Matrix, medoids: list[int]) -> list[int]:
    places = range(len(medoids))
    return [
        medoids.index(i) if i in medoids else min(places, key=lambda k: d[i][medoids[k]])
        for i in range(len(d))
    ]


def score(d: Matrix, y: list[int], medoids: list[int], gamma: float) -> float:
    cost = sum(min(d[i][j] for j in medoids) for i in range(len(d)))
    return gamma * (1.0 - nmi(y, nearest(d, medoids))) - cost


def best_score(x: Matrix, y: list[int], gamma: float) -> float:
    """Of all lists of medoids, whatever the search finds."""
    lists = combinations(range(len(x)), len(set(y)))
    return max(score(distance_table(x), y, list(medoids), gamma) for medoids in lists)


def true_score(x: Matrix, y: list[int]) -> float:
    d, total = distance_table(x), 0.0
    for label in set(y):
        members = [i for i in range(len(y)) if y[i] == label]
        total -= min(sum(d[i][j] for i in members) for j in members)
    return total


def search(x: Matrix, y: list[int], gamma=1.0, rounds=5) -> list[int]:
    d, medoids = distance_table(x), list[int]()
    for _ in set(y):
        free = [j for j in range(len(x)) if j not in medoids]
        medoids.append(max(free, key=lambda j: score(d, y, [*medoids, j], gamma)))
    for _ in range(rounds):
        clusters = nearest(d, medoids)
        for k in range(len(medoids)):
            members = [i for i in range(len(x)) if clusters[i] == k]

            def worth(c: int, k: int = k, members: list[int] = members) -> float:
                tried = [*medoids[:k], c, *medoids[k + 1 :]]
                wrong = 1.0 - nmi(y, nearest(d, tried))
                return gamma * wrong - sum(d[i][c] for i in members)

            medoids[k] = max(members, key=worth)
    return medoids


def facility_location(x: Matrix, y: list[int], gamma=1.0, rounds=5) -> float:
    medoids = search(x, y, gamma, rounds)
    return max(0.0, score(distance_table(x), y, medoids, gamma) - true_score(x, y))


def information(positive: list[float], negative: list[float]) -> float:
    return mean(positive) - log(mean([exp(value) for value in negative]))


def rank_mi(
    x: Matrix, y: list[int], drawn: list[tuple[int, int]], v: Callable[[float], float]
) -> float:
    s, p, n = partners(x, y, None, None)
    rows = range(len(x))
    near = [v(distance(s[i][j])) for i in rows for j in p[i]]
    far = [v(distance(s[i][j])) for i in rows for j in n[i]]
    sampled = [v(distance(s[i][j])) for i, j in drawn]
    return -information(near, sampled) - information(near, far)


def arc_point(a: Vector, b: Vector, share: float) -> Vector:
    """The point at a share of the way along the great circle from a to b."""
    angle = acos(max(-1.0, min(1.0, dot(a, b))))
    if angle < 1e-6:
        return a
    near, far = sin((1.0 - share) * angle) / sin(angle), sin(share * angle) / sin(angle)
    return unit([near * p + far * q for p, q in zip(a, b, strict=True)])


def arc_similarity(a: Vector, b: Vector, c: Vector, d: Vector, steps=12, rounds=40) -> float:
    """By a grid, drawn ever closer around its best point."""
    a, b, c, d = unit(a), unit(b), unit(c), unit(d)
    best, middle, width = -2.0, (0.5, 0.5), 0.5
    for _ in range(rounds):
        shares = [
            [min(1.0, max(0.0, m + width * (2 * k / steps - 1))) for k in range(steps + 1)]
            for m in middle
        ]
        ones = [(share, arc_point(a, b, share)) for share in shares[0]]
        others = [(share, arc_point(c, d, share)) for share in shares[1]]
        for share, one in ones:
            for other_share, other in others:
                if dot(one, other) > best:
                    best, middle = dot(one, other), (share, other_share)
        width *= 0.6
    return best


def multi_similarity_loop(x: Matrix, y: list[int], base=0.4, epsilon=-0.02) -> float:
    s, p, _ = partners(x, y, None, None)
    other = pairs_in_order(y)
    pairs = [(i, other[i]) for i in range(len(x)) if i <= other[i]]
    total = 0.0
    for i, j in pairs:
        pull = [s[i][k] for k in p[i]]
        if i != j:
            pull += [s[j][k] for k in p[j] if k != i]
        push = [arc_similarity(x[i], x[j], x[k], x[m]) for k, m in pairs if y[k] != y[i]]
        if not pull or not push:
            continue
        hard_p = [v for v in pull if v < max(push) + epsilon]
        hard_n = [v for v in push if v > min(pull) - epsilon]
        if hard_p and hard_n:
            total += terms(hard_p, hard_n, base=base)
    return total
