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


def angular_probability(
    x: Matrix, triplets: list[tuple[int, int, int]], r: Matrix, projection: Matrix, t: float
) -> float:
    """Ortho of some triplets; `r` is (C, D), `projection` L' (D, C), `t` is tan²(alpha)."""
    terms = []
    columns = [[row[k] for row in r] for k in range(len(r[0]))]
    for first, second, third in triplets:
        a, p, n = x[first], x[second], x[third]
        m = [(u + v) / 2 for u, v in zip(a, p, strict=True)]
        near = sum(dot(column, a) * dot(column, p) for column in columns)
        far = sum(dot(column, m) * dot(column, n) for column in columns)
        w = 0.5 * (1 / (1 + exp(-near)) + 1 - 1 / (1 + exp(-far)))
        across = sum(
            dot(row, [u - v for u, v in zip(a, p, strict=True)]) ** 2 for row in projection
        )
        away = sum(dot(row, [u - v for u, v in zip(n, m, strict=True)]) ** 2 for row in projection)
        terms.append(log(1 + exp(w * log(1 + exp(across - 4 * t * away)))))
    return mean(terms)


def semi_hard_triplets(
    x: Matrix, y: list[int], projection: Matrix, margin: float
) -> list[tuple[int, int, int]]:
    """For each pair of a cluster the nearest negative that is farther, within the margin."""

    def distance(i: int, j: int) -> float:
        difference = [u - v for u, v in zip(x[i], x[j], strict=True)]
        return sum(dot(row, difference) ** 2 for row in projection)

    found = []
    for a in range(len(x)):
        for p in range(len(x)):
            if a == p or y[a] != y[p]:
                continue
            reached = distance(a, p)
            others = [n for n in range(len(x)) if y[n] != y[a]]
            hard = [n for n in others if reached < distance(a, n) < reached + margin]
            if hard:
                found.append((a, p, min(hard, key=lambda n, a=a: distance(a, n))))
    return found


def synthetic_entropy(
    triplets: list[tuple[list[float], list[float], list[float]]],
    synthesis: Matrix,
    projection: Matrix,
    t: float,
) -> tuple[list[float], float]:
    """The five p of the last triplet, and the mean entropy; `synthesis` is S', rows of 2d."""

    def lengths(left: list[float], right: list[float]) -> tuple[float, float]:
        difference = [u - v for u, v in zip(left, right, strict=True)]
        made = [dot(row, difference) for row in synthesis]
        return dot(made, made), sum(dot(row, made) ** 2 for row in projection)

    entropies, odds = [], []
    for one, two, three in triplets:
        losses = []
        for a, p, n in ((one, two, three), (one, three, two), (two, three, one)):
            c, c_plus, c_minus = a + a, a + p, a + n
            middle = [(u + v) / 2 for u, v in zip(c, c_plus, strict=True)]
            across, across_projected = lengths(c, c_plus)
            away, away_projected = lengths(c_minus, middle)
            fs = 4 * t * away - across
            fm = across_projected - 4 * t * away_projected
            losses.append(log(1 + exp(fs)) + log(1 + exp(fm)))
        made, projected = lengths(one + two, one + three)
        losses += [-made + projected, made - projected]
        odds = [1 / (1 + exp(loss)) for loss in losses]
        entropies.append(-sum(p * log(p) for p in odds))
    return odds, mean(entropies)


def center_softmax(
    x: Matrix, y: list[int], centers: Matrix, k: list[int], temperature: float, own: bool
) -> float:
    """CBSwR's metric term; `k` is the center of each row."""
    terms = []
    for i, row in enumerate(x):
        e = [exp(dot(row, center) / temperature) for center in centers]
        (partner,) = (j for j in range(len(x)) if j != i and y[j] == y[i])
        below = sum(value for c, value in enumerate(e) if own or c != k[i])
        term = log(exp(dot(row, x[partner]) / temperature) / below)
        term += sum(log(1 - value / sum(e)) for c, value in enumerate(e) if c != k[i])
        terms.append(-term)
    return mean(terms)


def information(y: Matrix) -> tuple[float, float]:
    """H(Y|X) and H(Y) of CBSwR's classifier."""
    odds = [[exp(value) / sum(exp(other) for other in row) for value in row] for row in y]
    count, clusters = len(odds), len(odds[0])
    average = [mean([row[c] for row in odds]) for c in range(clusters)]
    given = -sum(q * log(q) for row in odds for q in row) / (count * log(count))
    return given, -sum(q * log(q) for q in average) / log(clusters)
