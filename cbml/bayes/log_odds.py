"""Log odds of a match: a line in the similarity and its cohorts, and a monotone curve."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import IsotonicRegression

Numbers = NDArray[np.float64]

# Groups of neighboring scores; each gets one point of the curve.
GROUPS = 200


@dataclass(frozen=True)
class MonotoneCurve:
    """Log odds that rise with the score: straight between points, level beyond them.

    Args:
        scores: of the points, ascending. (P,)
        log_odds: at the points, never falling. (P,)
    """

    scores: tuple[float, ...]
    log_odds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.scores) == len(self.log_odds) > 0:
            raise ValueError("a curve needs as many scores as log_odds, and at least one")
        for name in ("scores", "log_odds"):
            numbers = np.array(getattr(self, name), dtype=np.float64)
            if not (np.isfinite(numbers).all() and (np.diff(numbers) >= 0.0).all()):
                raise ValueError(f"{name} of a curve must be finite and never fall")

    @classmethod
    def of(cls, scores: ArrayLike, positives: ArrayLike, negatives: ArrayLike) -> "MonotoneCurve":
        """The isotonic fit to groups of neighboring scores.

        In a group of p positives and n negatives the odds are (p + ½) / (n + ½), so that no group
        is certain, however few it holds.

        Args:
            scores: one for each place. (S,)
            positives: how many positives there are at each place. (S,)
            negatives: how many negatives there are. (S,)
        """
        score, positive, negative = (
            np.asarray(part, dtype=np.float64) for part in (scores, positives, negatives)
        )
        order = np.argsort(score, kind="stable")
        score, positive, negative = score[order], positive[order], negative[order]
        # Both kinds weigh the same: where positives are rare, they still get half of the points.
        share = positive / max(positive.sum(), 1.0) + negative / max(negative.sum(), 1.0)
        place = (np.cumsum(share) - share / 2.0) / share.sum()
        group = np.clip(place * GROUPS, 0, GROUPS - 1).astype(np.int64)
        sums = [
            np.bincount(group, weights=part, minlength=GROUPS)
            for part in (positive, negative, (positive + negative) * score)
        ]
        weight = sums[0] + sums[1]
        used = weight > 0
        # Equal scores in two groups may have means that differ in their last bit.
        indices = np.maximum.accumulate(sums[2][used] / weight[used])
        level = (sums[0][used] + 0.5) / (weight[used] + 1.0)
        # It joins scores that are nearly equal; the last one may then lie beyond its last point.
        level = IsotonicRegression(out_of_bounds="clip").fit_transform(
            indices, level, sample_weight=weight[used]
        )
        return cls(tuple(indices.tolist()), tuple(np.log(level / (1.0 - level)).tolist()))

    def __call__(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Log odds at scores of any shape."""
        return np.interp(np.asarray(scores, dtype=np.float64), self.scores, self.log_odds)


class Line(NamedTuple):
    """Log odds as a weighted sum: the linear exponent of Φ, with a center for each pair.

    Args:
        similarity_weight: of the result's similarity, 1/β.
        cohort_weight: of the mean similarity of the query's cohort.
        result_weight: of the mean similarity of the result's own cohort.
        ceiling: the similarity above which more says no more: images of two classes can look
            the same, so that the most similar ones are not the surest.
    """

    similarity_weight: float
    cohort_weight: float
    constant: float
    result_weight: float = 0.0
    ceiling: float = 1.0

    def score(
        self, similarities: ArrayLike, cohort_mean: ArrayLike, result_cohort_mean: ArrayLike = 0.0
    ) -> Numbers:
        """The log odds of results.

        Args:
            similarities: of results. (..., K)
            cohort_mean: mean similarity of the cohorts of their queries. (..., 1)
            result_cohort_mean: of the cohorts of the results. (..., K)
        """
        s, b, r = (
            np.asarray(part, dtype=np.float64)
            for part in (similarities, cohort_mean, result_cohort_mean)
        )
        return (
            self.similarity_weight * np.minimum(s, self.ceiling)
            + self.cohort_weight * b
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
        self, similarities: ArrayLike, cohort_mean: ArrayLike, result_cohort_mean: ArrayLike = 0.0
    ) -> Numbers:
        """The log odds of results; -inf where there is none.

        Args:
            similarities: of results. (..., K)
            cohort_mean: mean similarity of the cohorts of their queries. (..., 1)
            result_cohort_mean: of the cohorts of the results. (..., K)
        """
        odds = self.line.score(similarities, cohort_mean, result_cohort_mean)
        if self.curve is None:
            return odds
        return np.where(np.isfinite(odds), self.curve(odds), odds)
