"""The losses of the methods without labels once more, literally, in plain loops.

`x` are unit embeddings, `y` the indices of their images, `memory` one vector for each image.
"""

from math import exp, log, sqrt

from tests.oracles.baselines import Matrix, dot, mean


def memory_softmax(x: Matrix, y: list[int], memory: Matrix, temperature: float) -> float:
    terms = []
    for row, own in zip(x, y, strict=True):
        odds = [exp(dot(vector, row) / temperature) for vector in memory]
        terms.append(-log(odds[own] / sum(odds)))
    return mean(terms)


def memory_nce(
    x: Matrix, y: list[int], memory: Matrix, draws: list[list[int]], temperature: float
) -> tuple[float, float]:
    """The normalizer of a first batch, and its loss."""
    n, k = len(memory), len(draws[0])
    odds = [
        [exp(dot(memory[i], row) / temperature) for i in [own, *drawn]]
        for row, own, drawn in zip(x, y, draws, strict=True)
    ]
    z = n * mean([value for row in odds for value in row])
    terms = []
    for row in odds:
        p = [value / z for value in row]
        term = log(p[0] / (p[0] + k / n + 1e-7))
        for other in p[1:]:
            term += log((k / n) / (other + k / n + 1e-7))
        terms.append(-term)
    return z, mean(terms)


def memory_write(memory: Matrix, x: Matrix, y: list[int], momentum: float) -> Matrix:
    written = [list(row) for row in memory]
    for row, own in zip(x, y, strict=True):
        mixed = [momentum * m + (1 - momentum) * v for m, v in zip(memory[own], row, strict=True)]
        length = sqrt(dot(mixed, mixed))
        written[own] = [value / length for value in mixed]
    return written


def linear_softmax(h: Matrix, y: list[int], weight: Matrix, bias: list[float]) -> float:
    terms = []
    for row, own in zip(h, y, strict=True):
        z = [dot(w, row) + b for w, b in zip(weight, bias, strict=True)]
        terms.append(log(sum(exp(value) for value in z)) - z[own])
    return mean(terms)


def anchors_of(memory: Matrix, temperature: float, count: int) -> list[int]:
    """The images whose own softmax over the memory has the smallest entropy."""
    entropies = []
    for row in memory:
        odds = [exp(dot(row, other) / temperature) for other in memory]
        q = [value / sum(odds) for value in odds]
        entropies.append(-sum(value * log(value) for value in q if value > 0))
    return sorted(range(len(memory)), key=lambda i: entropies[i])[:count]


def neighborhood_of(memory: Matrix, i: int, k: int) -> list[int]:
    others = [j for j in range(len(memory)) if j != i]
    return sorted(others, key=lambda j: -dot(memory[i], memory[j]))[:k]


def anchor_neighborhoods(
    x: Matrix, y: list[int], memory: Matrix, anchors: list[int], k: int, temperature: float
) -> float:
    terms = []
    for row, own in zip(x, y, strict=True):
        odds = [exp(dot(row, other) / temperature) for other in memory]
        accepted = [own, *(neighborhood_of(memory, own, k) if own in anchors else [])]
        terms.append(-log(sum(odds[j] for j in accepted) / sum(odds)))
    return mean(terms)


def instance_spreading(x: Matrix, y: list[int], temperature: float) -> tuple[float, float]:
    """The two terms: that of the other view, and that of the other images."""
    n, pull, push = len(x), [], []
    for i in range(n):
        odds = [exp(dot(x[i], x[k]) / temperature) for k in range(n)]
        below = sum(odds[k] for k in range(n) if k != i)
        partner = next(j for j in range(n) if j != i and y[j] == y[i])
        pull.append(-log(odds[partner] / below))
        push.append(-sum(log(1 - odds[j] / below) for j in range(n) if y[j] != y[i]))
    return mean(pull), mean(push)


def solved(matrix: Matrix, right: list[float]) -> list[float]:
    """The solution of a linear system, by elimination."""
    n = len(matrix)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def manifold_pools(
    v: Matrix, q: int, neighbors: int, alpha: float, longer: int, wider: int, pool: int
) -> tuple[list[int], list[float], list[int]]:
    """Positives, f and negatives of one anchor."""
    n = len(v)
    s = [[dot(a, b) for b in v] for a in v]
    knn = [sorted(range(n), key=lambda j, i=i: -s[i][j])[:neighbors] for i in range(n)]
    w = [[0.0] * n for _ in v]
    for i in range(n):
        for j in range(n):
            if i != j and j in knn[i] and i in knn[j]:
                w[i][j] = max(s[i][j], 0.0) ** 3
    degree = [sum(row) for row in w]
    system = [[float(i == j) for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(n):
            if w[i][j] > 0:
                system[i][j] -= alpha * w[i][j] / sqrt(degree[i] * degree[j])
    f = solved(system, [float(i == q) for i in range(n)])
    if degree[q] == 0:
        return [], f, []
    reached = [j for j in sorted(range(n), key=lambda j: -f[j]) if f[j] > 1e-12]
    near = sorted(range(n), key=lambda j: -s[q][j])
    positives = [j for j in reached[:longer] if j not in near[:longer] and j != q]
    negatives = [j for j in near[:wider] if j not in reached[:wider] and j != q]
    return positives[:pool], f, negatives[:pool]


def weighted_triplets(x: Matrix, weights: list[float], margin: float) -> float:
    """Rows come in threes: anchor, positive, negative."""
    terms = []
    for number, weight in enumerate(weights):
        a, p, n = x[3 * number : 3 * number + 3]
        near = sum((u - v) ** 2 for u, v in zip(a, p, strict=True))
        far = sum((u - v) ** 2 for u, v in zip(a, n, strict=True))
        terms.append(weight * max(0.0, margin + near - far))
    return mean(terms)
