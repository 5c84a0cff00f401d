"""Everything that the similarities of one set of pictures tell, as numbers."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit

from cbml.bayes.histograms import GaussianFit, PairHistogram
from cbml.bayes.lists import nearest_lists
from cbml.bayes.matching import MatchProbability
from cbml.bayes.reliability import Reliability
from cbml.bayes.statistics import PairStatistics
from cbml.errors import BadData
from cbml.index.inputs import Labels, Matrix, as_labels, as_matrix, unit_rows

__all__ = ["SetAnalysis", "analyze_set", "check_posteriors", "check_results"]

# Ranks up to which search results are checked; what a page shows is among them.
SHOWN = (1, 5, 10)


@dataclass(frozen=True, kw_only=True)
class SetAnalysis:
    """Similarities of the pairs of one set, under one model.

    Args:
        pictures: how many.
        classes: how many.
        statistics: exact moments of all pairs.
        histogram: of all pairs.
        positive_fit: how Gaussian the positive pairs are.
        negative_fit: how Gaussian the negative pairs are.
        posteriors: of pairs, by "gaussian" and by "monotone", each learned from half of the classes
            and checked on the other; empty where there are too few classes.
    """

    pictures: int
    classes: int
    statistics: PairStatistics
    histogram: PairHistogram = field(repr=False)
    positive_fit: GaussianFit
    negative_fit: GaussianFit
    posteriors: dict[str, Reliability]

    def as_dict(self) -> dict[str, Any]:
        """Every number by its name, ready for JSON; of the histogram, 100 steps."""
        coarse = self.histogram.coarser(100)
        return {
            "pictures": self.pictures,
            "classes": self.classes,
            "statistics": self.statistics.as_dict(),
            "prior_odds": self.statistics.prior_odds,
            "positive_fit": vars(self.positive_fit),
            "negative_fit": vars(self.negative_fit),
            "posteriors": {name: check.as_dict() for name, check in self.posteriors.items()},
            "histogram": {
                "positive": coarse.positive.tolist(),
                "negative": coarse.negative.tolist(),
            },
        }


def analyze_set(embeddings: Matrix, labels: Labels, *, seed: int = 0) -> SetAnalysis:
    """Analyse the pairs of a set.

    Args:
        embeddings: one row per picture. (N, D)
        labels: one per row. (N,)
        seed: of the halves of classes that check each other.
    """
    names = as_labels(labels, len(embeddings), "labels")
    statistics = PairStatistics.of(embeddings, names)
    histogram = PairHistogram.of(embeddings, names)
    try:
        posteriors = check_posteriors(embeddings, names, seed=seed)
    except BadData:
        posteriors = {}
    return SetAnalysis(
        pictures=len(names),
        classes=len(np.unique(names)),
        statistics=statistics,
        histogram=histogram,
        positive_fit=histogram.gaussian_fit(
            statistics.positive_mean, statistics.positive_std, positive=True
        ),
        negative_fit=histogram.gaussian_fit(
            statistics.negative_mean, statistics.negative_std, positive=False
        ),
        posteriors=posteriors,
    )


def check_posteriors(
    embeddings: Matrix, labels: Labels, *, seed: int = 0
) -> dict[str, Reliability]:
    """How far posteriors of pairs hold on classes they were not learned from.

    Classes are cut in two halves; all pairs within each half are judged by what the pairs within
    the other taught, with the prior odds of their own counts.

    Args:
        embeddings: one row per picture. (N, D)
        labels: one per row. (N,)
        seed: of the halves.
    """
    matrix = as_matrix(embeddings, "embeddings")
    codes = np.unique(as_labels(labels, len(matrix), "labels"), return_inverse=True)[1]
    halves = (np.random.default_rng(seed).permutation(int(codes.max()) + 1) % 2)[codes]
    if len(np.unique(halves)) < 2:
        raise BadData("labels: all pictures are of one class; halves of classes need two")
    parts = [(matrix[halves == half], codes[halves == half]) for half in (0, 1)]
    statistics = [PairStatistics.of(*part) for part in parts]
    histograms = [PairHistogram.of(*part) for part in parts]
    said: dict[str, list[Any]] = {"gaussian": [], "monotone": []}
    for taught, judged in ((0, 1), (1, 0)):
        centers, odds = histograms[judged].centers, statistics[judged].prior_odds
        said["gaussian"].append(statistics[taught].posterior(centers, prior_odds=odds))
        shift = np.log(odds / statistics[taught].prior_odds)
        said["monotone"].append(expit(histograms[taught].posterior_curve()(centers) + shift))
    counts = [
        np.concatenate([getattr(histograms[half], kind) for half in (1, 0)])
        for kind in ("positive", "negative")
    ]
    return {name: Reliability.of(np.concatenate(p), *counts) for name, p in said.items()}


def check_results(
    probability: MatchProbability, embeddings: Matrix, labels: Labels
) -> dict[int, Reliability]:
    """How far match probabilities hold for the first results of searches, by how many are shown.

    Args:
        probability: learned from other classes than these.
        embeddings: one row per picture, searched for among the others. (N, D)
        labels: one per row. (N,)
    """
    matrix = as_matrix(embeddings, "embeddings")
    rows = unit_rows(matrix, np.arange(len(matrix)), "embeddings").numpy()
    codes = np.unique(as_labels(labels, len(matrix), "labels"), return_inverse=True)[1]
    lists = nearest_lists(rows, max(probability.depth, *SHOWN))
    right = lists.matches(codes)
    said = probability.probability(lists.similarities)
    return {k: Reliability.of(said[:, :k], right[:, :k], ~right[:, :k]) for k in SHOWN}
