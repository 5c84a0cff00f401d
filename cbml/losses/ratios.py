"""The likelihood ratio Φ of a similarity, as an exponential whose exponent is a polynomial.

The posterior probability of a pair's kind depends on its similarity s only through

    Φ_N(s) = p[s | same] / p[s | different]        for negative pairs
    Φ_P(s) = p[s | different] / p[s | same]        for positive pairs

Both forms of the paper give log Φ(s) = quadratic s² + slope s + constant.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from cbml.losses.options import check_number

# Similarities are float32 numbers, a ten-millionth apart near 1: a narrower scale sees only noise.
SMALLEST_SCALE = 1e-6


class Exponent(NamedTuple):
    """Coefficients of log Φ(s) = quadratic s² + slope s + constant.

    Args:
        quadratic: Factor of s².
        constant: Value at s = 0.
    """

    quadratic: float
    slope: float
    constant: float

    def largest(self) -> float:
        """The largest log Φ(s) that a cosine similarity, -1 ≤ s ≤ 1, can have."""
        points = [-1.0, 1.0]
        if self.quadratic < 0.0:
            points.append(min(1.0, max(-1.0, -self.slope / (2.0 * self.quadratic))))
        return max((self.quadratic * s + self.slope) * s + self.constant for s in points)


@dataclass(frozen=True, kw_only=True)
class LinearRatio:
    """Φ with a linear exponent, exact for Gaussian similarities of equal variance.

        Φ_P(s) = exp((α_P - s) / β_P)
        Φ_N(s) = exp((s - α_N) / β_N)

    The defaults are the paper's for CUB and Cars.

    Args:
        positive_center: α_P. A positive pair below it costs more than log 2.
        positive_scale: β_P > 0. The smaller, the harder the hardest positive is pulled.
        negative_center: α_N. A negative pair above it costs more than log 2.
        negative_scale: β_N > 0. The smaller, the harder the hardest negative is pushed.
    """

    positive_center: float = 0.5
    positive_scale: float = 0.5
    negative_center: float = 1.0
    negative_scale: float = 0.01

    def __post_init__(self) -> None:
        for name in ("positive_center", "negative_center"):
            check_number(getattr(self, name), name)
        for name in ("positive_scale", "negative_scale"):
            check_number(getattr(self, name), name, at_least=SMALLEST_SCALE)

    @property
    def positive(self) -> Exponent:
        """The exponent of Φ_P."""
        return Exponent(0.0, -1.0 / self.positive_scale, self.positive_center / self.positive_scale)

    @property
    def negative(self) -> Exponent:
        """The exponent of Φ_N."""
        return Exponent(0.0, 1.0 / self.negative_scale, -self.negative_center / self.negative_scale)


@dataclass(frozen=True, kw_only=True)
class QuadraticRatio:
    """Φ of two Gaussians with their own variances, whose exponent is quadratic.

        Φ_N(s) = σ_N/σ_P exp((s - μ_N)² / (2 σ_N²) - (s - μ_P)² / (2 σ_P²))
        Φ_P(s) = 1 / Φ_N(s)

    Args:
        positive_mean: μ_P. Mean similarity of positive pairs.
        positive_std: σ_P > 0. Standard deviation of the similarity of positive pairs.
        negative_mean: μ_N. Mean similarity of negative pairs.
        negative_std: σ_N > 0. Standard deviation of the similarity of negative pairs.
    """

    positive_mean: float
    positive_std: float
    negative_mean: float
    negative_std: float

    def __post_init__(self) -> None:
        for name in ("positive_mean", "negative_mean"):
            check_number(getattr(self, name), name)
        for name in ("positive_std", "negative_std"):
            check_number(getattr(self, name), name, at_least=SMALLEST_SCALE)

    @property
    def negative(self) -> Exponent:
        """The exponent of Φ_N: ζ₁ s² + ζ₂ s + ζ₃ + log ς in the paper's letters."""
        positive_weight = 1.0 / self.positive_std**2
        negative_weight = 1.0 / self.negative_std**2
        return Exponent(
            (negative_weight - positive_weight) / 2.0,
            self.positive_mean * positive_weight - self.negative_mean * negative_weight,
            (self.negative_mean**2 * negative_weight - self.positive_mean**2 * positive_weight) / 2
            + math.log(self.negative_std / self.positive_std),
        )

    @property
    def positive(self) -> Exponent:
        """The exponent of Φ_P."""
        quadratic, slope, constant = self.negative
        return Exponent(-quadratic, -slope, -constant)
