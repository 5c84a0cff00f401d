"""Each baseline's formula once more, literally, in plain loops over lists of numbers.

`x` are the embeddings, `y` their labels, `z` and `w` the references and theirs, or None for the
batch itself. Every function divides vectors by their length first, except `n_pair` and, where
asked for raw rows, `lifted_structure`.
"""

from math import acos, cos, dist, exp, log, log1p, radians, sqrt, tan

Vector = list[float]
Matrix = list[Vector]


def softplus(value: float) -> float:
    return max(value, 0.0) + log1p(exp(-abs(value)))


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def dot(a: Vector, b: Vector) -> float:
    return sum(p * q for p, q in zip(a, b, strict=True))


def unit(a: Vector) -> Vector:
    length = sqrt(dot(a, a))
    return [value / length for value in a]


def cosines(x: Matrix, z: Matrix) -> Matrix:
    return [[max(-1.0, min(1.0, dot(unit(a), unit(b)))) for b in z] for a in x]


def partners(
    x: Matrix, y: list[int], z: Matrix | None, w: list[int] | None
) -> tuple[Matrix, list[list[int]], list[list[int]]]:
    """Similarities, and the positives and negatives of each anchor."""
    refs, ref_labels = (x, y) if z is None or w is None else (z, w)
    columns = range(len(refs))
    positives = [
        [j for j in columns if ref_labels[j] == y[i] and not (z is None and i == j)]
        for i in range(len(x))
    ]
    negatives = [[j for j in columns if ref_labels[j] != y[i]] for i in range(len(x))]
    return cosines(x, refs), positives, negatives


def distance(similarity: float) -> float:
    return sqrt(max(2.0 - 2.0 * similarity, 0.0))


def contrastive(x: Matrix, y: list[int], z=None, w=None, margin=1.0) -> float:
    s, p, n = partners(x, y, z, w)
    pull = [distance(s[i][j]) ** 2 / 2 for i in range(len(x)) for j in p[i]]
    push = [margin - distance(s[i][j]) for i in range(len(x)) for j in n[i]]
    return mean(pull) + mean([value**2 / 2 for value in push if value > 0])


def binomial_deviance(
    x: Matrix, y: list[int], z=None, w=None, scale=2.0, threshold=0.5, negative_cost=25.0
) -> float:
    s, p, n = partners(x, y, z, w)
    total = 0.0
    for lists, sign in ((p, 1.0), (n, -negative_cost)):
        number = sum(len(row) for row in lists)
        for i, row in enumerate(lists):
            for j in row:
                exponent = -scale * (s[i][j] - threshold) * sign
                total += softplus(exponent) / number
    return total


def histogram(x: Matrix, y: list[int], z=None, w=None, bins=200) -> float:
    s, p, n = partners(x, y, z, w)
    step = 2.0 / bins

    def heights(lists: list[list[int]]) -> list[float]:
        values = [s[i][j] for i in range(len(x)) for j in lists[i]]
        nodes = [-1.0 + r * step for r in range(bins + 1)]
        return [mean([max(0.0, 1.0 - abs(v - t) / step) for v in values]) for t in nodes]

    positive, negative = heights(p), heights(n)
    return sum(negative[r] * sum(positive[: r + 1]) for r in range(bins + 1))


def ranked_list(
    x: Matrix, y: list[int], z=None, w=None, boundary=1.2, margin=0.4, hot=10.0, share=0.5
) -> float:
    s, p, n = partners(x, y, z, w)
    total = 0.0
    for i in range(len(x)):
        far = [distance(s[i][j]) - (boundary - margin) for j in p[i]]
        near = [boundary - distance(s[i][j]) for j in n[i]]
        near = [value for value in near if value > 0]
        weights = [exp(hot * value) for value in near]
        total += (1 - share) * mean([value for value in far if value > 0])
        if near:
            total += share * dot(weights, near) / sum(weights)
    return total / len(x)


def lifted_structure(x: Matrix, y: list[int], z=None, w=None, margin=1.0, raw=False) -> float:
    s, p, n = partners(x, y, z, w)
    d = [[distance(value) for value in row] for row in s]
    if raw:
        d = [[dist(a, b) for b in (x if z is None else z)] for a in x]
    terms = []
    for i in range(len(x)):
        for j in p[i]:
            push = [exp(margin - d[i][k]) for k in n[i]]
            if z is None:
                push += [exp(margin - d[j][k]) for k in n[j]]
            else:
                push += [exp(margin - d[k][j]) for k in range(len(x)) if j in n[k]]
            joint = log(sum(push)) + d[i][j] if push else 0.0
            terms.append(max(0.0, joint) ** 2 / 2)
    return mean(terms)


def n_pair(x: Matrix, y: list[int], z=None, w=None, norm_weight=0.01) -> float:
    refs, ref_labels = (x, y) if z is None else (z, w)
    _, p, n = partners(x, y, z, w)
    by_class: dict[int, list[float]] = {}
    for i in range(len(x)):
        for j in p[i]:
            total = 0.0
            for other in {ref_labels[k] for k in n[i]}:
                members = [k for k in n[i] if ref_labels[k] == other]
                total += mean([exp(dot(x[i], refs[k]) - dot(x[i], refs[j])) for k in members])
            by_class.setdefault(y[i], []).append(log1p(total))
    cost = mean([mean(values) for values in by_class.values()])
    return cost + norm_weight * mean([dot(a, a) for a in x])


def angular(x: Matrix, y: list[int], z=None, w=None, angle=45.0) -> float:
    s, p, n = partners(x, y, z, w)
    among = cosines(x if z is None else z, x if z is None else z)
    t = tan(radians(angle)) ** 2
    terms = []
    for i in range(len(x)):
        for j in p[i]:
            pull = 2 * (1 + t) * s[i][j]
            terms.append(log1p(sum(exp(4 * t * (s[i][k] + among[j][k]) - pull) for k in n[i])))
    return mean(terms)


def tuplet_margin(x: Matrix, y: list[int], z=None, w=None, scale=64.0, margin=5.73) -> float:
    s, p, n = partners(x, y, z, w)
    terms = []
    for i in range(len(x)):
        for j in p[i]:
            own = cos(acos(s[i][j]) - radians(margin))
            terms.append(log1p(sum(exp(scale * (s[i][k] - own)) for k in n[i])))
    return mean(terms)


def nt_xent(x: Matrix, y: list[int], z=None, w=None, temperature=0.1) -> float:
    s, p, n = partners(x, y, z, w)
    terms = []
    for i in range(len(x)):
        for j in p[i]:
            own = exp(s[i][j] / temperature)
            terms.append(-log(own / (own + sum(exp(s[i][k] / temperature) for k in n[i]))))
    return mean(terms)


def multi_similarity(
    x: Matrix, y: list[int], z=None, w=None, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1
) -> float:
    s, p, n = partners(x, y, z, w)
    total = 0.0
    for i in range(len(x)):
        if not p[i] or not n[i]:
            continue
        hard_p = [s[i][j] for j in p[i] if s[i][j] - epsilon < max(s[i][k] for k in n[i])]
        hard_n = [s[i][k] for k in n[i] if s[i][k] + epsilon > min(s[i][j] for j in p[i])]
        total += log1p(sum(exp(-alpha * (v - base)) for v in hard_p)) / alpha
        total += log1p(sum(exp(beta * (v - base)) for v in hard_n)) / beta
    return total / len(x)


def circle(x: Matrix, y: list[int], z=None, w=None, margin=0.4, scale=80.0) -> float:
    s, p, n = partners(x, y, z, w)
    terms = []
    for i in range(len(x)):
        push = [scale * max(0.0, s[i][k] + margin) * (s[i][k] - margin) for k in n[i]]
        pull = [-scale * max(0.0, 1 + margin - s[i][j]) * (s[i][j] - 1 + margin) for j in p[i]]
        if push and pull:
            terms.append(log1p(sum(map(exp, push)) * sum(map(exp, pull))))
    return mean(terms)


def fast_ap(x: Matrix, y: list[int], bins=10) -> float:
    s, p, n = partners(x, y, None, None)
    step = 4.0 / bins

    def heights(i: int, columns: list[int]) -> list[float]:
        squares = [distance(s[i][j]) ** 2 for j in columns]
        nodes = [r * step for r in range(bins + 1)]
        return [sum(max(0.0, 1.0 - abs(v - t) / step) for v in squares) for t in nodes]

    terms = []
    for i in range(len(x)):
        if p[i]:
            own, everyone, precision = heights(i, p[i]), heights(i, p[i] + n[i]), 0.0
            for r in range(bins + 1):
                if own[r] > 0:
                    precision += own[r] * sum(own[: r + 1]) / sum(everyone[: r + 1])
            terms.append(1.0 - precision / len(p[i]))
    return mean(terms)


def triplet_semihard(x: Matrix, y: list[int], z=None, w=None, margin=0.2) -> float:
    s, p, n = partners(x, y, z, w)
    terms = []
    for i in range(len(x)):
        for j in p[i]:
            gaps = [distance(s[i][k]) ** 2 - distance(s[i][j]) ** 2 for k in n[i]]
            terms += [margin - gap for gap in gaps if 0.0 < gap < margin]
    return mean(terms)


def triplet_easy_positive(x, y, z=None, w=None, negatives="semihard", temperature=0.1) -> float:
    s, p, n = partners(x, y, z, w)
    terms = []
    for i in range(len(x)):
        if not p[i]:
            continue
        easy = max(s[i][j] for j in p[i])
        pushed = [s[i][k] for k in n[i] if negatives == "hard" or s[i][k] < easy]
        if pushed:
            terms.append(softplus((max(pushed) - easy) / temperature))
    return mean(terms)


def margin(x, y, triplets: list[tuple[int, int, int]], width=0.2, beta=1.2) -> float:
    s = cosines(x, x)
    terms = [width + distance(s[i][j]) - beta for i, j, _ in triplets]
    terms += [width + beta - distance(s[i][k]) for i, _, k in triplets]
    return mean([value for value in terms if value > 0])
