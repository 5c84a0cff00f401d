"""From the results of searches in a labeled set to the log odds of a match."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from cbml.bayes.calibration import Line, MonotoneCurve, Odds, Reliability
from cbml.bayes.neighbors import (
    Neighbors,
    ResultContext,
    mean_of_cohort,
    nearest_neighbors,
    ranks_to_fit,
    result_context,
)
from cbml.errors import BadData
from cbml.query_gallery import QueryGallery

Numbers = NDArray[np.float64]

# What people see of a list.
FIRST_RESULTS = 10

# The cohorts of so many results are looked up to fit to: each costs a search.
RESULT_COHORTS = 8192

# Ceilings that are tried: so large a share of the relevant results lies below.
SHARES = (1.0, 0.9, 0.75)


class Results(NamedTuple):
    """Results of queries, and whether they are relevant.

    Args:
        features: Their similarities, the mean similarities of their queries' cohorts, and where
            there are more, those of their own cohorts, and shares of nearest images in common with
            their queries. (F, Q, K)
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
    matches = results.matches
    if matches.all() or not matches.any():
        raise BadData(
            "labels: too few classes to fit probabilities: half of them have no relevant or no "
            "irrelevant results; use more validation classes"
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
        raise BadData(
            "relevant results are not more similar than irrelevant ones: nothing to calibrate"
        )
    constant = float(model.intercept_[0] - weights @ center)
    similarity, cohort, result, shared = [*map(float, weights), 0.0, 0.0][:4]
    return Line(similarity, cohort, constant, result, ceiling, shared)


class FittedOdds(NamedTuple):
    """What the searches of a set tell.

    Args:
        by_query: Odds from similarities and the cohorts of queries.
        by_both: From those and the context of results; None where that says no more.
    """

    by_query: Fit
    by_both: Fit | None
    cohort_mean: float


def fit_odds(
    query_gallery: QueryGallery, cohort: tuple[int, int], *, shared_depth: int, seed: int
) -> FittedOdds:
    """The odds of the first results that hold best on classes left out.

    Far down a list similarities mean something else than among the first results, which people
    look at. More than the first ten are fitted to only where hardly any of them is irrelevant.

    Args:
        cohort: Begin and end of the ranks of the cohort.
        shared_depth: How many nearest images of a query and a result are compared; 0 for none.
        seed: Random seed of the choice of queries, and of the halves of classes.
    """
    neighbors = nearest_neighbors(query_gallery, cohort[1], seed=seed)
    means = mean_of_cohort(neighbors.similarities, cohort, 0.0)

    def context_of(results: Neighbors) -> ResultContext:
        rows = np.searchsorted(neighbors.queries, results.queries)
        nearest = neighbors.indices[rows, :shared_depth]
        return result_context(
            query_gallery.embeddings, results.queries, results.indices, nearest, cohort, 0.0
        )

    depth, deepest = FIRST_RESULTS, neighbors.similarities.shape[1]
    while depth < deepest:
        try:
            return _fit_to_first(query_gallery, neighbors, means, depth, context_of, seed)
        except BadData:
            depth *= 2
    return _fit_to_first(query_gallery, neighbors, means, deepest, context_of, seed)


def _fit_to_first(
    query_gallery: QueryGallery,
    neighbors: Neighbors,
    means: Numbers,
    depth: int,
    context_of: Callable[[Neighbors], ResultContext],
    seed: int,
) -> FittedOdds:
    """The odds that hold best for so many first results of each query."""
    ranks, counts = ranks_to_fit(depth)
    neighbors = neighbors.at(ranks)
    shape = neighbors.similarities.shape
    features = np.empty((2, *shape))
    features[0], features[1] = neighbors.similarities, means
    weights = np.broadcast_to(counts * 1.0, shape)
    results = Results(features, neighbors.relevant(query_gallery.codes), weights)
    by_query = choose_fit(results, query_gallery.codes[neighbors.queries], seed=seed)
    by_both = _with_context(query_gallery, neighbors, results, by_query, context_of, seed)
    return FittedOdds(by_query, by_both, float(means.mean()))


def _with_context(
    query_gallery: QueryGallery,
    neighbors: Neighbors,
    results: Results,
    baseline: Fit,
    context_of: Callable[[Neighbors], ResultContext],
    seed: int,
) -> Fit | None:
    """The odds that know the context of results, if they beat those that do not."""
    classes = query_gallery.codes[neighbors.queries]
    try:
        if len(query_gallery.codes) > RESULT_COHORTS:  # the results of fewer queries then, for both
            every = -(-neighbors.indices.size // RESULT_COHORTS)
            some = np.arange(len(classes)) % every == 0
            results, classes = results.of(some), classes[some]
            neighbors = Neighbors(*(part[some] for part in neighbors))
            baseline = choose_fit(results, classes, seed=seed)
        context = context_of(neighbors)
        # Without shared neighbors, nothing is told by a weight for them.
        wider = context if context.shared.any() else context[:1]
        found = choose_fit(
            results._replace(features=np.concatenate([results.features, np.stack(wider)])),
            classes,
            seed=seed,
        )
    except BadData:  # too few queries
        return None
    # The check cannot see what it is for: that shared neighbors still hold among more classes.
    allowed = 1.02 if len(wider) > 1 else 1.0
    return found if found.check.log_loss < allowed * baseline.check.log_loss else None
