"""Everything that the similarities of one set of images tell, as numbers."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from cbml.bayes.calibration import Reliability
from cbml.bayes.match_probability import MatchProbability
from cbml.bayes.neighbors import nearest_neighbors
from cbml.bayes.pairs import GaussianFit, PairHistogram
from cbml.bayes.statistics import PairStatistics
from cbml.errors import BadData
from cbml.query_gallery import Labels, Matrix, QueryGallery

# Ranks up to which search results are checked; what a page shows is among them.
SHOWN = (1, 5, 10)
# Images that share a label: with fewer, chance decides; more take long to search for.
_FEWEST_TO_TELL, _MOST_TO_SEARCH = 50, 20_000
Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SetAnalysis:
    """Similarities of the pairs of one set, or of queries with a gallery, under one model.

    Args:
        images: Number of images; of queries, where there is a gallery.
        gallery: Number of gallery images; None where every image is both query and gallery.
        classes: Number of classes, of queries and gallery together.
        statistics: Exact moments of all pairs.
        histogram: Histogram of the similarities of all pairs.
        positive_fit: How Gaussian the positive pairs are.
        negative_fit: How Gaussian the negative pairs are.
        posteriors: Reliability of pair probabilities, by "gaussian" and by "monotone", each fitted
            to half of the classes and checked on the other, beside the "prior", which knows no
            similarity; without the Gaussians where there are none, and empty where there are too
            few classes.
    """

    images: int
    gallery: int | None
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
            "images": self.images,
            "gallery": self.gallery,
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


def analyze_set(
    embeddings: Matrix | QueryGallery,
    labels: Labels | None = None,
    *,
    seed: int = 0,
) -> SetAnalysis:
    """Analyze the pairs of a set, or of queries with a gallery.

    Args:
        embeddings: One row per image, or a `QueryGallery`. (N, D)
        labels: One label per row. (N,)
        seed: Random seed of the halves of classes that check each other.
    """
    query_gallery = QueryGallery.of(embeddings, labels)
    statistics = PairStatistics.of(query_gallery)
    histogram = PairHistogram.of(query_gallery)
    try:
        posteriors = check_posteriors(query_gallery, seed=seed)
    except BadData:
        posteriors = {}
    return SetAnalysis(
        images=len(query_gallery.codes),
        gallery=None if query_gallery.gallery_codes is None else len(query_gallery.gallery_codes),
        classes=len(query_gallery.class_labels),
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
    embeddings: Matrix | QueryGallery,
    labels: Labels | None = None,
    *,
    seed: int = 0,
) -> dict[str, Reliability]:
    """How far posteriors of pairs hold on classes they were not fitted to.

    Classes are cut in two halves; all pairs within each half are judged by what was fitted to the
    pairs within the other, with the prior odds of their own counts. The prior alone is judged too:
    nearly all pairs are negative, so that saying so of each is calibrated, and only a log loss
    below that of the prior tells something. A method that cannot be fitted to these pairs is left
    out.

    Args:
        embeddings: One row per image, or a `QueryGallery`. (N, D)
        labels: One label per row. (N,)
        seed: Random seed of the halves.
    """
    query_gallery = QueryGallery.of(embeddings, labels)
    parts = _class_halves(query_gallery, seed)
    statistics = [PairStatistics.of(part) for part in parts]
    histograms = [PairHistogram.of(part) for part in parts]
    counts = [
        np.concatenate([getattr(histogram, kind) for histogram in histograms[::-1]])
        for kind in ("positive", "negative")
    ]
    checks = {}
    for name, method in _METHODS.items():
        try:
            posteriors = [
                method(statistics[fitted], histograms[fitted], statistics[judged].prior_odds)
                for fitted, judged in ((0, 1), (1, 0))
            ]
        except BadData:
            continue
        checks[name] = Reliability.of(np.concatenate(posteriors), *counts)
    return checks


def _class_halves(query_gallery: QueryGallery, seed: int) -> list[QueryGallery]:
    """The images of each half of the classes."""
    half_of = np.random.default_rng(seed).permutation(len(query_gallery.class_labels)) % 2
    parts = [query_gallery.of_classes(half_of == half) for half in (0, 1)]
    if not all(len(part.codes) for part in parts):
        raise BadData("labels: all images are of one class; halves of classes need two")
    if not all(len(part.searched) for part in parts):
        raise BadData("labels: half of the classes have no image in the gallery")
    return parts


def _by_prior(statistics: PairStatistics, histogram: PairHistogram, odds: float) -> Numbers:
    return np.full(len(histogram.centers), odds / (1.0 + odds))


def _by_gaussians(statistics: PairStatistics, histogram: PairHistogram, odds: float) -> Numbers:
    return statistics.posterior(histogram.centers, prior_odds=odds)


def _by_curve(statistics: PairStatistics, histogram: PairHistogram, odds: float) -> Numbers:
    shift = np.log(odds / statistics.prior_odds)
    posterior: Numbers = expit(histogram.posterior_curve()(histogram.centers) + shift)
    return posterior


# What the pairs of one half say, at each step of similarity, of pairs with other prior odds.
_METHODS = {"prior": _by_prior, "gaussian": _by_gaussians, "monotone": _by_curve}


def check_results(
    probability: MatchProbability,
    embeddings: Matrix | QueryGallery,
    labels: Labels | None = None,
) -> dict[int, Reliability]:
    """How far match probabilities hold for the first results of searches, by how many are shown.

    Args:
        probability: Fitted to other classes than these.
        embeddings: One row per image, searched for among the others, or a `QueryGallery`. (N, D)
        labels: One label per row. (N,)
    """
    query_gallery = QueryGallery.of(embeddings, labels)
    found = nearest_neighbors(query_gallery, max(probability.depth, *SHOWN))
    shown = slice(0, max(SHOWN))
    confidence = probability.probability(
        found.similarities[:, shown],
        cohort_mean=probability.cohort_mean(found.similarities),
        own=query_gallery.searches_itself,
    )
    relevant = found.relevant(query_gallery.codes, query_gallery.searched_codes)
    return {k: Reliability.of(confidence[:, :k], relevant[:, :k], ~relevant[:, :k]) for k in SHOWN}


def probability_for(
    probability: MatchProbability, embeddings: Matrix, labels: Labels
) -> MatchProbability | None:
    """The probabilities `for_gallery`; None where the gallery's labels show that they mislead.

    Weights fitted to other classes are checked where there are labels: probabilities with a larger
    Brier score than the constant share of relevant results mislead.

    Args:
        probability: Fitted to other classes than these.
        embeddings: What will be searched. (N, D)
        labels: One per row. (N,)
    """
    ready = probability.for_gallery(embeddings, labels)
    sizes = np.unique(np.asarray(labels), return_counts=True)[1]
    own = ready.odds.line != ready.source  # fitted to these labels
    if own or not _FEWEST_TO_TELL <= sizes[sizes > 1].sum() <= _MOST_TO_SEARCH:
        return ready
    check = check_results(ready, embeddings, labels)[10]
    share = float(np.average(check.accuracy, weights=check.counts))
    return ready if check.brier <= share * (1.0 - share) else None
