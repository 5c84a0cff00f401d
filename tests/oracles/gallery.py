"""Searching a gallery, literally: loops over lists of numbers."""

import math
from collections.abc import Sequence

Row = Sequence[float]


def dot(a: Row, b: Row) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def same_look(a: Row, b: Row) -> bool:
    """Whether no cell of two 8 × 8 grids of colours differs by more than 12."""
    return all(abs(int(x) - int(y)) <= 12 for x, y in zip(a, b, strict=True))


def search(
    rows: Sequence[Row],
    names: Sequence[str],
    labels: Sequence[str | None],
    looks: Sequence[Row],
    query: tuple[Row, Row, int | None],
    wish: dict[str, object],
) -> tuple[list[tuple[int, int, bool]], list[int]]:
    """Rank, place and duplicate flag of the results, and the places of the missed pictures.

    The query is its vector, its look and its place.
    """
    vector, look, own = query
    text = str(wish.get("text", "")).casefold()

    def passes(place: int) -> bool:
        words = (names[place] + "\n" + (labels[place] or "")).casefold()
        return text in words and wish.get("label") in (None, labels[place])

    others = [place for place in range(len(rows)) if place != own]
    ranked = sorted(others, key=lambda place: (-dot(rows[place], vector), place))
    results: list[tuple[int, int, bool]] = []
    seen: list[int] = []
    distinct = [look]
    for rank, place in enumerate(ranked, start=1):
        if not passes(place) or len(results) == wish["k"]:
            continue
        duplicate = any(same_look(looks[place], other) for other in distinct)
        seen.append(place)
        if not duplicate:
            distinct.append(looks[place])
        if not (wish.get("hide_duplicates") and duplicate):
            results.append((rank, place, duplicate))
    if own is None or labels[own] is None:
        return results, []
    left = [place for place in ranked if passes(place) and place not in seen]
    return results, [place for place in left if labels[place] == labels[own]]


def tsne_cost(joint: Sequence[Row], places: Sequence[Row]) -> float:
    """Σ p_ij log(p_ij / q_ij) with q_ij ∝ 1 / (1 + |y_i - y_j|²)."""
    count = len(places)
    near = [
        [
            0.0
            if i == j
            else 1 / (1 + sum((a - b) ** 2 for a, b in zip(places[i], places[j], strict=True)))
            for j in range(count)
        ]
        for i in range(count)
    ]
    total = math.fsum(value for row in near for value in row)
    return math.fsum(
        joint[i][j] * math.log(joint[i][j] * total / near[i][j])
        for i in range(count)
        for j in range(count)
        if i != j
    )
