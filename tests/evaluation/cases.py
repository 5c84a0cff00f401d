"""Generated sets of embeddings with every corner: ties, lone classes, collapse, query and gallery.

Every case is safe to compare across precisions: two similarities of a query are either the same
number by construction or clearly apart.
"""

import random
from dataclasses import dataclass
from typing import Literal

from tests.oracles import retrieval as literal

KINDS = [
    "ordinary",
    "signs",  # coordinates of ±1 in 4 or 16 dimensions: few values, all products exact
    "axes",  # unit axes and their opposites: similarities of -1, 0 and 1 only
    "duplicates",
    "collapsed",
    "separated",
    "all alone but two",
    "one class",
    "one large class",
    "huge and tiny lengths",
]


@dataclass(frozen=True)
class Case:
    """Queries, and a gallery or None, which may hold the queries themselves."""

    rows: list[list[float]]
    labels: list[int]
    gallery: list[list[float]] | None = None
    gallery_labels: list[int] | None = None
    self_indices: list[int] | None = None


Gallery = Literal["none", "another", "holds the queries"]


def make_case(kind: str, chance: random.Random, gallery: Gallery) -> Case:
    """A case in which at least one query has a positive."""
    while True:
        dim = chance.choice([4, 16]) if kind == "signs" else chance.choice([2, 3, 8, 17])
        space = make_space(kind, dim, chance)
        rows, labels = some(kind, chance, dim, space, chance.randint(2, 24))
        case = Case(rows, labels)
        if gallery != "none":
            case = Case(rows, labels, *some(kind, chance, dim, space, chance.randint(1, 30)))
        if gallery == "holds the queries":
            case = with_queries(case, chance)
        found = literal.queries(
            case.rows, case.labels, case.gallery, case.gallery_labels, case.self_indices
        )
        apart = literal.smallest_gap(case.rows, case.gallery) > 3e-6
        if apart and any(query.positives for query in found):
            return case


def with_queries(case: Case, chance: random.Random) -> Case:
    """Most of the queries put into their gallery, at any place."""
    assert case.gallery is not None
    assert case.gallery_labels is not None
    images = [
        (row, label, -1) for row, label in zip(case.gallery, case.gallery_labels, strict=True)
    ]
    for query, (row, label) in enumerate(zip(case.rows, case.labels, strict=True)):
        if chance.random() < 0.8:
            images.append((row, label, query))
    chance.shuffle(images)
    places = {query: place for place, (_, _, query) in enumerate(images) if query >= 0}
    return Case(
        case.rows,
        case.labels,
        [row for row, _, _ in images],
        [label for _, label, _ in images],
        [places.get(query, -1) for query in range(len(case.rows))],
    )


def make_space(kind: str, dim: int, chance: random.Random) -> list[list[float]]:
    """The vectors from which a case with repetitions draws."""
    number = {"duplicates": chance.randint(1, 6), "collapsed": 1}.get(kind, 8)
    return [gaussian(dim, chance) for _ in range(number)]


def gaussian(dim: int, chance: random.Random) -> list[float]:
    # Few digits, so that float32 holds the number exactly.
    return [round(chance.gauss(0.0, 1.0) * 4096) / 4096 or 0.5 for _ in range(dim)]


def some(
    kind: str, chance: random.Random, dim: int, space: list[list[float]], size: int
) -> tuple[list[list[float]], list[int]]:
    """Rows and labels of one kind."""
    classes = chance.randint(1, 6)
    labels = [chance.randrange(classes) * 7 - 3 for _ in range(size)]
    if kind == "all alone but two":
        labels = list(range(size))
        labels[-1] = labels[0]
    elif kind == "one class":
        labels = [5] * size
    elif kind == "one large class":
        labels = [1 if chance.random() < 0.8 else label for label in labels]
    rows = [row(kind, chance, dim, space, label) for label in labels]
    return rows, labels


def row(
    kind: str, chance: random.Random, dim: int, space: list[list[float]], label: int
) -> list[float]:
    if kind == "signs":
        return [chance.choice([-1.0, 1.0]) for _ in range(dim)]
    if kind == "axes":
        place, sign = chance.randrange(dim), chance.choice([-1.0, 1.0])
        return [sign if i == place else 0.0 for i in range(dim)]
    if kind in {"duplicates", "collapsed"}:
        scale = 2.0 ** chance.randint(-3, 3)  # a power of two changes no digit
        return [scale * value for value in chance.choice(space)]
    if kind == "separated":
        middle = space[label % len(space)]
        return [10.0 * a + b for a, b in zip(middle, gaussian(dim, chance), strict=True)]
    if kind == "huge and tiny lengths":
        scale = 2.0 ** chance.randint(-60, 60)
        return [scale * value for value in gaussian(dim, chance)]
    return gaussian(dim, chance)
