"""Log odds of a match, from a similarity and what lies around it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbml.bayes.curve import MonotoneCurve

__all__ = ["Line", "Odds"]

Numbers = NDArray[np.float64]


class Line(NamedTuple):
    """Log odds as a weighted sum: the linear exponent of Φ, with a centre for each pair.

    Args:
        similarity_weight: of the result's similarity, 1/β.
        background_weight: of the query's background.
        constant: the rest.
        result_weight: of the result's own background.
        ceiling: the similarity above which more says no more: pictures of two classes can look
            the same, so that the most similar ones are not the surest.
    """

    similarity_weight: float
    background_weight: float
    constant: float
    result_weight: float = 0.0
    ceiling: float = 1.0

    def score(
        self, similarities: ArrayLike, background: ArrayLike, result_background: ArrayLike = 0.0
    ) -> Numbers:
        """The log odds of results.

        Args:
            similarities: of results. (..., K)
            background: of their queries. (..., 1)
            result_background: of the results. (..., K)
        """
        s, b, r = (
            np.asarray(part, dtype=np.float64)
            for part in (similarities, background, result_background)
        )
        return (
            self.similarity_weight * np.minimum(s, self.ceiling)
            + self.background_weight * b
            + self.result_weight * r
            + self.constant
        )


@dataclass(frozen=True)
class Odds:
    """Log odds by a line, and by a curve where that says more.

    Args:
        line: the weights and the constant.
        curve: from the line's log odds to better ones; None where the line is as good.
    """

    line: Line
    curve: MonotoneCurve | None = None

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.line)):
            raise ValueError("the numbers of a line must be finite")
        if not self.line.similarity_weight > 0.0:
            raise ValueError("odds must rise with the similarity")

    def __call__(
        self, similarities: ArrayLike, background: ArrayLike, result_background: ArrayLike = 0.0
    ) -> Numbers:
        """The log odds of results; -inf where there is none.

        Args:
            similarities: of results. (..., K)
            background: of their queries. (..., 1)
            result_background: of the results. (..., K)
        """
        odds = self.line.score(similarities, background, result_background)
        if self.curve is None:
            return odds
        return np.where(np.isfinite(odds), self.curve(odds), odds)
