"""Every score that `evaluate` gives, in one table: a new one is a function and a line here.

With rank_1 < rank_2 < ... the ranks of a query's R positives, larger ranks farther away:

    Recall@K           = [rank_1 <= K]
    reciprocal rank    = 1 / rank_1
    R-precision        = |{j : rank_j <= R}| / R
    average precision  = 1/R  Σ_{j : rank_j <= R}  j / rank_j
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Codes = NDArray[np.integer[Any]]
Ranks = NDArray[np.int64]
Values = NDArray[np.float64]


class Metric(NamedTuple):
    """How a score is computed, and from what.

    Args:
        compute: The function; its arguments depend on `needs`.
        needs: "first hit" and "nearest" take the ranks of each query's positives, ascending (Q, W),
            and R (Q,), and give a value for each query, of which the score is the mean. With
            "first hit" only the first rank counts; "nearest" has all ranks up to R, and any larger
            number for the others. A name that ends in "@k" is computed for every K, its third
            argument. "clusters" takes the classes and the clusters of the queries (Q,) and gives
            the score.
    """

    compute: Callable[..., Any]
    needs: Literal["first hit", "nearest", "clusters"]


def recall(ranks: Ranks, positives: Ranks, k: int) -> Values:
    """Whether a positive is among the K nearest."""
    return (ranks[:, 0] <= k).astype(np.float64)


def reciprocal_rank(ranks: Ranks, positives: Ranks) -> Values:
    """One over the rank of the nearest positive."""
    return 1.0 / ranks[:, 0]


def r_precision(ranks: Ranks, positives: Ranks) -> Values:
    """The share of positives among the R nearest."""
    found: Values = (ranks <= positives[:, None]).sum(axis=1) / positives
    return found


def average_precision(ranks: Ranks, positives: Ranks) -> Values:
    """Precision at each positive among the R nearest, summed and divided by R."""
    precision = np.arange(1, ranks.shape[1] + 1) / ranks
    found: Values = ((ranks <= positives[:, None]) * precision).sum(axis=1) / positives
    return found


def agreement(classes: Codes, clusters: Codes) -> tuple[float, float]:
    """NMI and AMI of two groupings of the same things, both with the arithmetic mean.

    With I their mutual information, H their entropies and E the mean of I over all groupings with
    the same group sizes:

        NMI = I / mean(H)
        AMI = (I - E) / (mean(H) - E)

    E depends on the sizes of the groups only, so each pair of sizes is worked out once: there are
    thousands of classes, but few sizes.

    Args:
        classes: Group of each thing. (N,)
        clusters: Each row's group in the other grouping. (N,)
    """
    from sklearn.metrics import mutual_info_score  # importing it takes as long as torch

    class_sizes, cluster_sizes = _sizes(classes), _sizes(clusters)
    if len(class_sizes) == len(cluster_sizes) == 1:
        return 1.0, 1.0  # one group each: the same grouping
    information = float(mutual_info_score(classes, clusters))
    entropy = (_entropy(class_sizes) + _entropy(cluster_sizes)) / 2.0
    chance = _expected_information(class_sizes, cluster_sizes)
    rest = entropy - chance
    # Everything alone on both sides leaves nothing to chance, and both groupings are the same.
    adjusted = (information - chance) / rest if abs(rest) > 1e-12 else 1.0
    return min(1.0, max(0.0, information / entropy)), min(1.0, adjusted)


def _sizes(groups: Codes) -> NDArray[np.int64]:
    return np.unique(groups, return_counts=True)[1]


def _entropy(sizes: NDArray[np.int64]) -> float:
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())


def _expected_information(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """E: the sum over pairs of groups of sizes a and b, and over their possible overlaps n.

    E = Σ_{a,b} Σ_n  n/N log(N n / (a b)) · P(n)
    P = a! b! (N-a)! (N-b)! / (N! n! (a-n)! (b-n)! (N-a-b+n)!)
    """
    total = int(first.sum())
    expected = 0.0
    second_sizes, second_counts = np.unique(second, return_counts=True)
    for a, a_count in zip(*np.unique(first, return_counts=True), strict=True):
        for b, b_count in zip(second_sizes, second_counts, strict=True):
            n = np.arange(max(1, a + b - total), min(a, b) + 1)
            information = n / total * (np.log(total) + np.log(n) - np.log(a) - np.log(b))
            chance = _log_factorial(a) + _log_factorial(b) + _log_factorial(total - a)
            chance = chance + _log_factorial(total - b) - _log_factorial(total)
            chance = chance - _log_factorial(n) - _log_factorial(a - n) - _log_factorial(b - n)
            chance = chance - _log_factorial(total - a - b + n)
            expected += float(a_count * b_count * (information * np.exp(chance)).sum())
    return expected


def _log_factorial(number: Any) -> Any:
    return gammaln(number + 1.0)


def _nmi(classes: Codes, clusters: Codes) -> float:
    return agreement(classes, clusters)[0]


def _ami(classes: Codes, clusters: Codes) -> float:
    return agreement(classes, clusters)[1]


METRICS: dict[str, Metric] = {
    "recall@k": Metric(recall, "first hit"),
    "map@r": Metric(average_precision, "nearest"),
    "r_precision": Metric(r_precision, "nearest"),
    "mrr": Metric(reciprocal_rank, "first hit"),
    "nmi": Metric(_nmi, "clusters"),
    "ami": Metric(_ami, "clusters"),
}
