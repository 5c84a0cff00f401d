"""Retrieval and clustering scores, literally: sort everything, then count with plain loops."""

import itertools
import math
from dataclasses import dataclass


@dataclass
class Query:
    """What one query finds; a lone query has no positives and no numbers."""

    positives: int
    first_hit: int
    average_precision: float
    r_precision: float
    relevant: list[bool]


def cosine(first: list[float], second: list[float]) -> float:
    product = math.fsum(a * b for a, b in zip(first, second, strict=True))
    lengths = math.sqrt(math.fsum(a * a for a in first) * math.fsum(b * b for b in second))
    return product / lengths


def queries(
    rows: list[list[float]],
    labels: list[int],
    gallery: list[list[float]] | None = None,
    gallery_labels: list[int] | None = None,
    self_indices: list[int] | None = None,
) -> list[Query]:
    """Every query with its ranked list; negatives come before positives of the same similarity."""
    found = []
    for i in range(len(rows)):
        ranked = []
        others, other_labels = (rows, labels) if gallery is None else (gallery, gallery_labels)
        assert other_labels is not None
        for j in range(len(others)):
            if gallery is None and i == j:
                continue
            if self_indices is not None and self_indices[i] == j:
                continue
            positive = other_labels[j] == labels[i]
            slack = math.sqrt(len(rows[i])) * 2.0**-23 if positive else 0.0
            ranked.append((slack - cosine(rows[i], others[j]), positive))
        ranked.sort()
        found.append(one_query([positive for _, positive in ranked]))
    return found


def one_query(relevant: list[bool]) -> Query:
    positives = sum(relevant)
    if positives == 0:
        return Query(0, 0, math.nan, math.nan, relevant)
    hits, total = 0, 0.0
    for place in range(1, positives + 1):
        if relevant[place - 1]:
            hits += 1
            total += hits / place
    return Query(positives, relevant.index(True) + 1, total / positives, hits / positives, relevant)


def recall(found: list[Query], k: int) -> float:
    """Share of the queries that have a positive, and have one among the first k."""
    scored = [query for query in found if query.positives]
    return sum(any(query.relevant[:k]) for query in scored) / len(scored)


def mean_reciprocal_rank(found: list[Query]) -> float:
    scored = [query for query in found if query.positives]
    return sum(1 / query.first_hit for query in scored) / len(scored)


def mean(values: list[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers)


def smallest_gap(rows: list[list[float]], gallery: list[list[float]] | None = None) -> float:
    """The smallest difference between similarities of one query that are not the same."""
    gap = math.inf
    for row in rows:
        values = sorted(cosine(row, other) for other in (gallery or rows))
        for low, high in itertools.pairwise(values):
            if high - low > 1e-14:  # below it the same number, rounded in another order
                gap = min(gap, high - low)
    return gap


def entropy(groups: list[int]) -> float:
    total = len(groups)
    return -sum(
        groups.count(one) / total * math.log(groups.count(one) / total) for one in set(groups)
    )


def mutual_information(first: list[int], second: list[int]) -> float:
    total, value = len(first), 0.0
    for one in set(first):
        for other in set(second):
            both = sum(a == one and b == other for a, b in zip(first, second, strict=True))
            if both:
                chance = first.count(one) * second.count(other) / total
                value += both / total * math.log(both / chance)
    return value


def expected_information(first: list[int], second: list[int]) -> float:
    """The mean of the mutual information over all shufflings, by exact binomials."""
    total, value = len(first), 0.0
    for one in set(first):
        for other in set(second):
            a, b = first.count(one), second.count(other)
            for both in range(1, min(a, b) + 1):
                ways = math.comb(a, both) * math.comb(total - a, b - both)
                if ways:
                    information = both / total * math.log(total * both / (a * b))
                    value += information * ways / math.comb(total, b)
    return value


def nmi(first: list[int], second: list[int]) -> float:
    middle = (entropy(first) + entropy(second)) / 2
    return mutual_information(first, second) / middle if middle else 1.0


def ami(first: list[int], second: list[int]) -> float:
    middle = (entropy(first) + entropy(second)) / 2
    chance = expected_information(first, second)
    if abs(middle - chance) < 1e-12:
        return 1.0
    return (mutual_information(first, second) - chance) / (middle - chance)
