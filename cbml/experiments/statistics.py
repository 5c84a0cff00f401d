"""The mean of a few seeds and how far it can be trusted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        mean: of the values.
        half_width: of the 95 % interval around it; None for a single value.
        count: of the values.
    """

    mean: float
    half_width: float | None
    count: int

    def __str__(self) -> str:
        around = "" if self.half_width is None else f" ± {self.half_width:.1f}"
        return f"{self.mean:.1f}{around}"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean and its 95 % interval by Student's t over the values.

        mean ± t(n - 1) s / √n,   s² = Σ (x - mean)² / (n - 1)

    Args:
        values: one for each seed.
    """
    count = len(values)
    if not count:
        raise ValueError("values: at least one is needed")
    mean = sum(values) / count
    if count == 1:
        return Estimate(mean, None, 1)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    point = float(stdtrit(count - 1, 0.975))
    return Estimate(mean, point * spread / math.sqrt(count), count)
