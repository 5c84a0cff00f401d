"""The CBML loss anchor by anchor, pair by pair, as the paper's equations read."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Row = Sequence[float]
Function = Callable[[float], float]


@dataclass(frozen=True)
class Oracle:
    """Every choice that the loss offers; `phi_p` and `phi_n` are Φ_P and Φ_N themselves."""

    phi_p: Function
    phi_n: Function
    averaging: str = "log"
    delta: float | str = 1.0
    epsilon: float | None = 0.1
    lam: float = 1.0
    gamma: float = 0.2
    variance: str = "mean"
    skip: bool = False
    omega: float = 1.0


def linear(
    alpha_p: float, beta_p: float, alpha_n: float, beta_n: float
) -> tuple[Function, Function]:
    """Φ_P and Φ_N with linear exponents."""
    return (
        lambda s: math.exp((alpha_p - s) / beta_p),
        lambda s: math.exp((s - alpha_n) / beta_n),
    )


def gaussian(mu_p: float, sigma_p: float, mu_n: float, sigma_n: float) -> tuple[Function, Function]:
    """Φ_P and Φ_N as ratios of two normal densities, with a quadratic exponent."""

    def exponent(s: float) -> float:
        return (s - mu_n) ** 2 / (2 * sigma_n**2) - (s - mu_p) ** 2 / (2 * sigma_p**2)

    return (
        lambda s: sigma_p / sigma_n * math.exp(-exponent(s)),
        lambda s: sigma_n / sigma_p * math.exp(exponent(s)),
    )


def cosine(left: Row, right: Row) -> float:
    """The cosine of the angle between two vectors."""
    product = math.fsum(a * b for a, b in zip(left, right, strict=True))
    return product / (math.hypot(*left) * math.hypot(*right))


def average(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def terms(
    oracle: Oracle,
    embeddings: Sequence[Row],
    labels: Sequence[int],
    references: Sequence[Row] | None = None,
    reference_labels: Sequence[int] | None = None,
    positive_pairs: set[tuple[int, int]] | None = None,
    negative_pairs: set[tuple[int, int]] | None = None,
) -> tuple[float, float, float, float]:
    """L_P, L_N, L_2 and L; the pair sets take the place of those given by the labels."""
    sums = [0.0, 0.0, 0.0]
    others = embeddings if references is None else references
    other_labels = labels if reference_labels is None else reference_labels
    for i, anchor in enumerate(embeddings):
        positives, negatives = [], []
        for j, other in enumerate(others):
            if positive_pairs is not None and negative_pairs is not None:
                is_positive, is_negative = (i, j) in positive_pairs, (i, j) in negative_pairs
            else:
                is_self = references is None and i == j
                is_positive = labels[i] == other_labels[j] and not is_self
                is_negative = labels[i] != other_labels[j]
            if is_positive or is_negative:
                similarity = cosine(anchor, other)
                if is_positive:
                    positives.append(similarity)
                if is_negative:
                    negatives.append(similarity)
        for place, value in enumerate(anchor_terms(oracle, positives, negatives)):
            sums[place] += value
    l_p, l_n, l_2 = (value / len(embeddings) for value in sums)
    return l_p, l_n, l_2, oracle.omega * l_p + l_n + oracle.lam * l_2


def anchor_terms(
    oracle: Oracle, positives: list[float], negatives: list[float]
) -> tuple[float, float, float]:
    """The terms of one anchor from the similarities of its pairs."""
    hard_positives, hard_negatives = positives, negatives
    if oracle.epsilon is not None:
        gamma_max = max(negatives, default=-math.inf)
        gamma_min = min(positives, default=math.inf)
        hard_positives = [s for s in positives if s < gamma_max + oracle.epsilon]
        hard_negatives = [s for s in negatives if s > gamma_min - oracle.epsilon]
    if oracle.skip and (not hard_positives or not hard_negatives):
        return 0.0, 0.0, 0.0
    delta_p = delta_n = 0.0
    if isinstance(oracle.delta, float):
        delta_p = delta_n = oracle.delta
    elif oracle.delta == "mean":
        delta_p, delta_n = 1 / max(1, len(positives)), 1 / max(1, len(negatives))
    elif positives and negatives:
        delta_p = len(negatives) / len(positives) ** 2
        delta_n = len(positives) / len(negatives) ** 2
    f = {"log": math.log, "sqrt": math.sqrt, "const": float}[oracle.averaging]
    # log1p keeps the digits of a small sum, which math.log(1 + x) would lose.
    f_of_one_plus = math.log1p if oracle.averaging == "log" else lambda x: f(1.0 + x)
    l_p = f_of_one_plus(delta_p * math.fsum(oracle.phi_p(s) for s in hard_positives))
    l_n = f_of_one_plus(delta_n * math.fsum(oracle.phi_n(s) for s in hard_negatives))
    l_2 = 0.0
    if positives and negatives:
        xi = oracle.gamma * average(positives) + (1 - oracle.gamma) * average(negatives)
        squares = [(s - xi) ** 2 for s in negatives]
        l_2 = average(squares) if oracle.variance == "mean" else math.fsum(squares)
    return l_p, l_n, l_2
