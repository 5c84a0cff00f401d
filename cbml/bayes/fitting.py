"""From the results of searches in a labeled set to the log odds of a match."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from cbml.bayes.calibration import Line, MonotoneCurve, Odds, Reliability
from cbml.bayes.neighbors import Neighbors, mean_of_cohort, nearest_neighbors, ranks_to_fit
from cbml.errors import BadData
from cbml.query_gallery import QueryGallery

Numbers = NDArray[np.float64]

# What people see of a list.
FIRST_RESULTS = 10

# Ceilings that are tried: so large a share of the relevant results lies below.
SHARES = (1.0, 0.9, 0.75)


class Results(NamedTuple):
    """Results of queries, and whether they are relevant.

    Args:
        features: Their similarities, and the mean similarities of their queries' cohorts. (2, Q, K)
        matches: Whether each is relevant. (Q, K)
        counts: How many results each stands for, where lists were thinned. (Q, K)
    """

    features: Numbers
    matches: NDArray[np.bool_]
    counts: Numbers

    def of(self, queries: NDArray[np.bool_]) -> "Results":
        """The results of some queries."""
        return Results(self.features[:, queries], self.matches[queries], self.counts[queries])

    @property
    def outcomes(self) -> tuple[Numbers, Numbers]:
        """How many relevant and irrelevant results each stands for, (Q, K)."""
        return self.matches * self.counts, ~self.matches * self.counts


class Fit(NamedTuple):
    """What was fitted to results.

    Args:
        check: On classes that were held out while fitting.
    """

    odds: Odds
    check: Reliability


def choose_fit(results: Results, classes: NDArray[np.int64], *, seed: int) -> Fit:
    """The odds that say most about queries of classes they have not seen.

    Lines without and with a ceiling, each without and with a curve. Classes are cut in two halves;
    each half is judged by what was fitted to the other.
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
    log_odds = [np.empty(results.matches.shape) for _ in range(2)]
    for half in (0, 1):
        judged = results.of(halves == half)
        for odds, target in zip(_odds(results.of(halves != half), share), log_odds, strict=True):
            target[halves == half] = odds(*judged.features)
    checks = [Reliability.of(expit(odds), *results.outcomes) for odds in log_odds]
    return list(map(Fit, _odds(results, share), checks))


def _odds(results: Results, share: float) -> tuple[Odds, Odds]:
    line = _fit_line(results, share)
    scores, (relevant, irrelevant) = line.score(*results.features), results.outcomes
    curve = MonotoneCurve.of(scores.ravel(), relevant.ravel(), irrelevant.ravel())
    return Odds(line), Odds(line, curve)


def _fit_line(results: Results, share: float) -> Line:
    from sklearn.linear_model import LogisticRegression  # importing it takes as long as torch

    matches = results.matches
    if matches.all() or not matches.any():
        raise BadData(
            "labels: too few classes to fit probabilities: half of them have no relevant or no "
            "irrelevant results; use more validation classes"
        )
    ceiling = 1.0
    if share < 1.0:
        ceiling = float(np.quantile(results.features[0][matches], share))
    features = results.features.reshape(2, -1).T.copy()
    features[:, 0] = np.minimum(features[:, 0], ceiling)
    center, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    # So weak a penalty only keeps the weights finite where the classes are perfectly apart.
    model = LogisticRegression(C=1e4, max_iter=1000).fit(
        (features - center) / scale, matches.ravel(), sample_weight=results.counts.ravel()
    )
    weights = model.coef_[0] / scale
    if not weights[0] > 0.0:
        raise BadData(
            "relevant results are not more similar than irrelevant ones: nothing to calibrate"
        )
    constant = float(model.intercept_[0] - weights @ center)
    return Line(float(weights[0]), float(weights[1]), constant, ceiling)


def fit_odds(
    searches: Sequence[QueryGallery], cohort: tuple[int, int], *, seed: int
) -> tuple[Fit, float]:
    """The odds of the first results that hold best on classes left out, and the mean cohort mean.

    Far down a list similarities mean something else than among the first results, which people
    look at. More than the first ten are fitted to only where hardly any of them is irrelevant.

    Args:
        searches: The same queries among themselves, and among more images.
        cohort: Begin and end of the ranks of the cohort.
        seed: Random seed of the choice of queries, and of the halves of classes.
    """
    found = [nearest_neighbors(one, cohort[1], seed=seed) for one in searches]
    means = [mean_of_cohort(one.similarities, cohort, 0.0) for one in found]
    classes = np.concatenate([searches[0].codes[one.queries] for one in found])
    depth, deepest = FIRST_RESULTS, min(one.similarities.shape[1] for one in found)
    while True:
        lists = zip(searches, found, means, strict=True)
        first = [_first_results(*one, min(depth, deepest)) for one in lists]
        results = Results(*(np.concatenate(part, axis=-2) for part in zip(*first, strict=True)))
        try:
            return choose_fit(results, classes, seed=seed), float(means[0].mean())
        except BadData:
            if depth >= deepest:
                raise
            depth *= 2


def _first_results(
    search: QueryGallery, neighbors: Neighbors, means: Numbers, depth: int
) -> Results:
    """So many first results of each query."""
    ranks, counts = ranks_to_fit(depth)
    neighbors = neighbors.at(ranks)
    shape = neighbors.similarities.shape
    features = np.empty((2, *shape))
    features[0], features[1] = neighbors.similarities, means
    relevant = neighbors.relevant(search.codes, search.searched_codes)
    return Results(features, relevant, np.broadcast_to(counts * 1.0, shape))
