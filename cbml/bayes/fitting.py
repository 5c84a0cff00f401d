"""From lists of search results to log odds of a match."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from cbml.bayes.curve import MonotoneCurve
from cbml.bayes.reliability import Reliability
from cbml.errors import BadData

__all__ = ["Fit", "Line", "backgrounds", "choose_fit", "crowd_ranks"]

Numbers = NDArray[np.float64]

# The crowd of a query: so many results, the first of them behind nearly all that can be right.
CROWD = 10
SPARE = 1.5
# No list is looked at farther than this: classes may have any number of pictures.
DEEPEST = 1000


class Line(NamedTuple):
    """Log odds as a weighted sum: the linear exponent of Φ, with a centre for each query.

    Args:
        similarity_weight: of the result's similarity, 1/β.
        background_weight: of the query's background.
        constant: the rest.
    """

    similarity_weight: float
    background_weight: float
    constant: float

    def score(self, similarities: ArrayLike, background: ArrayLike) -> Numbers:
        """The log odds of results.

        Args:
            similarities: of results. (..., K)
            background: of their queries. (..., 1)
        """
        s, b = (np.asarray(part, dtype=np.float64) for part in (similarities, background))
        return self.similarity_weight * s + self.background_weight * b + self.constant


class Fit(NamedTuple):
    """What was learned from lists.

    Args:
        line: log odds by similarity and background.
        curve: from the line's log odds to better ones; None where the line is as good.
        check: on classes that were held out while fitting.
    """

    line: Line
    curve: MonotoneCurve | None
    check: Reliability


def crowd_ranks(positives: NDArray[np.int64], pictures: int) -> tuple[int, int]:
    """Begin and end of the ranks whose mean similarity is a query's background.

    Args:
        positives: how many right results there are for each query. (Q,)
        pictures: that a search can find.
    """
    first = int(np.ceil(SPARE * np.percentile(positives, 90)))
    first = min(max(first, CROWD), DEEPEST)
    if pictures < first + CROWD:  # a small set: the farther half of it
        return min(first, pictures // 2), pictures
    return first, first + CROWD


def backgrounds(
    similarities: ArrayLike, ranks: tuple[int, int], typical: float
) -> NDArray[np.float64]:
    """The mean similarity of each query's crowd, (..., 1).

    Args:
        similarities: of results, the nearest first; -inf where there is none. (..., K)
        ranks: begin and end of the crowd.
        typical: for lists that end before the crowd begins.
    """
    crowd = np.asarray(similarities, dtype=np.float64)[..., ranks[0] : ranks[1]]
    there = np.isfinite(crowd)
    count = there.sum(axis=-1, keepdims=True)
    total = np.where(there, crowd, 0.0).sum(axis=-1, keepdims=True)
    return np.where(count > 0, total / np.maximum(count, 1), typical)


def choose_fit(
    similarities: ArrayLike,
    background: ArrayLike,
    matches: NDArray[np.bool_],
    classes: NDArray[np.int64],
    *,
    counts: ArrayLike = 1.0,
    seed: int,
) -> Fit:
    """The line, with the curve where that says more about queries of classes it has not seen.

    Classes are cut in two halves; each half is judged by what the other taught.

    Args:
        similarities: of results. (Q, K)
        background: of queries. (Q, 1)
        matches: whether each result is right. (Q, K)
        classes: of the queries. (Q,)
        counts: how many results each one stands for, where lists were thinned. (K,)
        seed: of the halves.
    """
    s, b = np.asarray(similarities, dtype=np.float64), np.asarray(background, dtype=np.float64)
    counts = np.broadcast_to(np.asarray(counts, dtype=np.float64), s.shape)
    known, codes = np.unique(classes, return_inverse=True)
    halves = (np.random.default_rng(seed).permutation(len(known)) % 2)[codes]
    plain, curved = np.empty(s.shape), np.empty(s.shape)
    for half in (0, 1):
        taught, judged = halves != half, halves == half
        line = _fit_line(s[taught], b[taught], matches[taught], counts[taught])
        curve = _fit_curve(line.score(s[taught], b[taught]), matches[taught], counts[taught])
        plain[judged] = line.score(s[judged], b[judged])
        curved[judged] = curve(plain[judged])
    seen = matches * counts, ~matches * counts
    checks = [Reliability.of(expit(odds), *seen) for odds in (plain, curved)]
    line = _fit_line(s, b, matches, counts)
    if checks[0].log_loss <= checks[1].log_loss:
        return Fit(line, None, checks[0])
    return Fit(line, _fit_curve(line.score(s, b), matches, counts), checks[1])


def _fit_line(s: Numbers, b: Numbers, matches: NDArray[np.bool_], counts: Numbers) -> Line:
    if matches.all() or not matches.any():
        raise BadData(
            "labels: too few classes to learn probabilities from: half of them has no right or no "
            "wrong results; use more validation classes"
        )
    features = np.stack([s.ravel(), np.broadcast_to(b, s.shape).ravel()], axis=1)
    center, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    # So weak a penalty only keeps the weights finite where the classes are perfectly apart.
    model = LogisticRegression(C=1e4, max_iter=1000).fit(
        (features - center) / scale, matches.ravel(), sample_weight=counts.ravel()
    )
    weights = model.coef_[0] / scale
    if not weights[0] > 0.0:
        raise BadData("right results are not more similar than wrong ones: nothing to calibrate")
    constant = float(model.intercept_[0] - weights @ center)
    return Line(float(weights[0]), float(weights[1]), constant)


def _fit_curve(scores: Numbers, matches: NDArray[np.bool_], counts: Numbers) -> MonotoneCurve:
    seen = (matches * counts).ravel(), (~matches * counts).ravel()
    return MonotoneCurve.of(scores.ravel(), *seen)
