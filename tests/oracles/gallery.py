"""Searching a gallery, literally: loops over lists of numbers."""

import math
from collections.abc import Sequence

Row = Sequence[float]


def dot(a: Row, b: Row) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def same_signature(a: Row, b: Row) -> bool:
    """Whether no cell of two 8 × 8 grids of colors differs by more than 12."""
    return all(abs(int(x) - int(y)) <= 12 for x, y in zip(a, b, strict=True))


def search(
    rows: Sequence[Row],
    names: Sequence[str],
    labels: Sequence[str | None],
    signatures: Sequence[Row],
    query: tuple[Row, Row, int | None],
    options: dict[str, object],
) -> tuple[list[tuple[int, int, bool]], list[int]]:
    """Rank, place and duplicate flag of the results, and the places of the missed images.

    The query is its vector, its signature and its place.
    """
    vector, signature, own = query
    text = str(options.get("text", "")).casefold()

    def passes(place: int) -> bool:
        words = (names[place] + "\n" + (labels[place] or "")).casefold()
        return text in words and options.get("label") in (None, labels[place])

    others = [place for place in range(len(rows)) if place != own]
    ranked = sorted(others, key=lambda place: (-dot(rows[place], vector), place))
    results: list[tuple[int, int, bool]] = []
    seen: list[int] = []
    distinct = [signature]
    for rank, place in enumerate(ranked, start=1):
        if not passes(place) or len(results) == options["k"]:
            continue
        duplicate = any(same_signature(signatures[place], other) for other in distinct)
        seen.append(place)
        if not duplicate:
            distinct.append(signatures[place])
        if not (options.get("hide_duplicates") and duplicate):
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
