"""The formulas of the baselines with learned vectors once more, literally, in plain loops.

`x` are the embeddings, `y` their labels, `proxies` the learned vectors, one for each class. Every
function divides vectors by their length first.
"""

from math import acos, cos, exp, log, log1p, pi, sin

from tests.oracles.baselines import Matrix, cosines, distance, dot, mean, unit


def proxy_nca(x: Matrix, y: list[int], proxies: Matrix, scale=3.0) -> float:
    terms = []
    for row, own in zip(x, y, strict=True):
        long = [scale * value for value in unit(row)]
        squares = []
        for proxy in proxies:
            gap = [a - scale * b for a, b in zip(long, unit(proxy), strict=True)]
            squares.append(dot(gap, gap))
        others = sum(exp(-square) for c, square in enumerate(squares) if c != own)
        terms.append(-log(exp(-squares[own]) / others))
    return mean(terms)


def proxy_nca_pp(x: Matrix, y: list[int], proxies: Matrix, temperature=1 / 9) -> float:
    s = cosines(x, proxies)
    odds = [[exp(-(2 - 2 * value) / temperature) for value in row] for row in s]
    return mean([-log(odds[i][own] / sum(odds[i])) for i, own in enumerate(y)])


def proxy_anchor(x: Matrix, y: list[int], proxies: Matrix, margin=0.1, scale=32.0) -> float:
    s, classes = cosines(x, proxies), range(len(proxies))
    pull, push = [], []
    for c in classes:
        own = [exp(-scale * (s[i][c] - margin)) for i in range(len(x)) if y[i] == c]
        if own:
            pull.append(log1p(sum(own)))
        push.append(log1p(sum(exp(scale * (s[i][c] + margin)) for i in range(len(x)) if y[i] != c)))
    return mean(pull) + mean(push)


def normalized_softmax(x: Matrix, y: list[int], proxies: Matrix, temperature=0.05) -> float:
    odds = [[exp(value / temperature) for value in row] for row in cosines(x, proxies)]
    return mean([-log(odds[i][own] / sum(odds[i])) for i, own in enumerate(y)])


def arcface(x: Matrix, y: list[int], proxies: Matrix, margin=0.5, scale=64.0) -> float:
    s, m = cosines(x, proxies), margin  # in radians, as the paper has it
    terms = []
    for i, own in enumerate(y):
        angle = acos(s[i][own])
        handicapped = cos(angle + m) if angle <= pi - m else cos(angle) - m * sin(m)
        z = [scale * (handicapped if c == own else s[i][c]) for c in range(len(proxies))]
        top = max(z)
        terms.append(top + log(sum(exp(value - top) for value in z)) - z[own])
    return mean(terms)


def soft_triple(
    x: Matrix, y: list[int], centers: list[Matrix], scale=20.0, hot=0.1, delta=0.01, weight=0.2
) -> float:
    count, terms = len(centers[0]), []
    for i, own in enumerate(y):
        z = []
        for c, members in enumerate(centers):
            s = [dot(unit(x[i]), unit(member)) for member in members]
            odds = [exp(value / hot) for value in s]
            z.append(scale * (dot(odds, s) / sum(odds) - (delta if c == own else 0.0)))
        terms.append(-log(exp(z[own]) / sum(map(exp, z))))
    spread = 0.0
    for members in centers:
        for k in range(count):
            for m in range(k + 1, count):
                spread += distance(dot(unit(members[k]), unit(members[m])))
    return mean(terms) + weight * spread / (len(centers) * count * (count - 1))
