"""The structural similarity of DIML once more, literally, in plain loops."""

from math import exp

from tests.oracles.baselines import Matrix, Vector, dot


def worth(cells: Matrix, other: Vector) -> Vector:
    found = [max(0.0, dot(cell, other)) for cell in cells]
    return [value / (sum(found) + 1e-5) for value in found]


def plan(similarity: Matrix, u: Vector, v: Vector, rounds: int, blur: float = 0.05) -> Matrix:
    """Sinkhorn's iteration as it is usually written, with factors of rows and columns."""
    kernel = [[exp(-(1.0 - s) / blur) for s in row] for row in similarity]
    r, c = [1.0] * len(u), [1.0] * len(v)
    for _ in range(rounds):
        r = [u[i] / dot(kernel[i], c) for i in range(len(u))]
        c = [v[j] / sum(kernel[i][j] * r[i] for i in range(len(u))) for j in range(len(v))]
    return [[r[i] * kernel[i][j] * c[j] for j in range(len(v))] for i in range(len(u))]


def structural(first: Matrix, second: Matrix, a: Vector, b: Vector, rounds: int) -> float:
    """Of cells and embeddings of two images."""
    similarity = [[dot(one, other) for other in second] for one in first]
    moved = plan(similarity, worth(first, b), worth(second, a), rounds)
    return sum(dot(row, values) for row, values in zip(moved, similarity, strict=True))
