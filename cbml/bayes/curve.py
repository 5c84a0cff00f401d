"""A monotone curve from a score to log odds, learned from counts without assuming a shape."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import IsotonicRegression

__all__ = ["MonotoneCurve"]

# Groups of neighbouring scores; each gets one point of the curve.
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
        """The isotonic fit to groups of neighbouring scores.

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
        places = np.maximum.accumulate(sums[2][used] / weight[used])
        level = (sums[0][used] + 0.5) / (weight[used] + 1.0)
        level = IsotonicRegression().fit_transform(places, level, sample_weight=weight[used])
        return cls(tuple(places.tolist()), tuple(np.log(level / (1.0 - level)).tolist()))

    def __call__(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Log odds at scores of any shape."""
        return np.interp(np.asarray(scores, dtype=np.float64), self.scores, self.log_odds)
