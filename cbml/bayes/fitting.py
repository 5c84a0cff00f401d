"""From lists of search results to log odds of a match."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from cbml.bayes.curve import MonotoneCurve
from cbml.bayes.odds import Line, Odds
from cbml.bayes.reliability import Reliability
from cbml.errors import BadData

__all__ = ["Fit", "Numbers", "Results", "backgrounds", "choose_fit"]

Numbers = NDArray[np.float64]

# Ceilings that are tried: so large a share of the right results lies below.
SHARES = (1.0, 0.9, 0.75)


class Results(NamedTuple):
    """Results of queries, and whether they were right.

    Args:
        features: their similarities, the backgrounds of their queries, and where there are three,
            their own backgrounds. (F, Q, K)
        matches: whether each is right. (Q, K)
        counts: how many results each stands for, where lists were thinned. (Q, K)
    """

    features: Numbers
    matches: NDArray[np.bool_]
    counts: Numbers

    def of(self, queries: NDArray[np.bool_]) -> "Results":
        """The results of some queries.

        Args:
            queries: which. (Q,)
        """
        return Results(self.features[:, queries], self.matches[queries], self.counts[queries])

    @property
    def seen(self) -> tuple[Numbers, Numbers]:
        """How many right and wrong results each stands for, (Q, K)."""
        return self.matches * self.counts, ~self.matches * self.counts


class Fit(NamedTuple):
    """What was learned from results.

    Args:
        odds: of a match.
        check: on classes that were held out while fitting.
    """

    odds: Odds
    check: Reliability


def backgrounds(similarities: ArrayLike, ranks: tuple[int, int], typical: float) -> Numbers:
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


def choose_fit(results: Results, classes: NDArray[np.int64], *, seed: int) -> Fit:
    """The odds that say most about queries of classes they have not seen.

    Lines without and with a ceiling, each without and with a curve. Classes are cut in two halves;
    each half is judged by what the other taught.

    Args:
        results: what to learn from.
        classes: of the queries. (Q,)
        seed: of the halves.
    """
    known, codes = np.unique(classes, return_inverse=True)
    halves = (np.random.default_rng(seed).permutation(len(known)) % 2)[codes]
    fits = _fits(results, halves, SHARES[0])
    for share in SHARES[1:]:
        try:
            fits += _fits(results, halves, share)
        except BadData:  # nothing is left to tell below that ceiling
            continue
    return min(fits, key=lambda fit: fit.check.log_loss)  # the simplest of equals


def _fits(results: Results, halves: NDArray[np.int64], share: float) -> list[Fit]:
    """The line with the ceiling of one share, and the same with a curve."""
    said = [np.empty(results.matches.shape) for _ in range(2)]
    for half in (0, 1):
        judged = results.of(halves == half)
        for odds, place in zip(_odds(results.of(halves != half), share), said, strict=True):
            place[halves == half] = odds(*judged.features)
    checks = [Reliability.of(expit(odds), *results.seen) for odds in said]
    return list(map(Fit, _odds(results, share), checks))


def _odds(results: Results, share: float) -> tuple[Odds, Odds]:
    line = _fit_line(results, share)
    scores, (right, wrong) = line.score(*results.features), results.seen
    curve = MonotoneCurve.of(scores.ravel(), right.ravel(), wrong.ravel())
    return Odds(line), Odds(line, curve)


def _fit_line(results: Results, share: float) -> Line:
    matches = results.matches
    if matches.all() or not matches.any():
        raise BadData(
            "labels: too few classes to learn probabilities from: half of them has no right or no "
            "wrong results; use more validation classes"
        )
    ceiling = 1.0
    if share < 1.0:
        ceiling = float(np.quantile(results.features[0][matches], share))
    features = results.features.reshape(len(results.features), -1).T.copy()
    features[:, 0] = np.minimum(features[:, 0], ceiling)
    center, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    # So weak a penalty only keeps the weights finite where the classes are perfectly apart.
    model = LogisticRegression(C=1e4, max_iter=1000).fit(
        (features - center) / scale, matches.ravel(), sample_weight=results.counts.ravel()
    )
    weights = model.coef_[0] / scale
    if not weights[0] > 0.0:
        raise BadData("right results are not more similar than wrong ones: nothing to calibrate")
    constant = float(model.intercept_[0] - weights @ center)
    result = float(weights[2]) if len(weights) > 2 else 0.0
    return Line(float(weights[0]), float(weights[1]), constant, result, ceiling)
