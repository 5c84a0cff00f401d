"""The probability that a search result is of the query's class."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from cbml.bayes.calibration import Line, Odds, Reliability, as_record, read_fields
from cbml.bayes.fitting import fit_odds
from cbml.bayes.neighbors import (
    FEWEST_CLASSES,
    ExpectedPositives,
    enough_to_fit,
    mean_of_cohort,
    nearest_neighbors,
)
from cbml.errors import BadData, DamagedFile
from cbml.files import write_json
from cbml.query_gallery import Labels, Matrix, QueryGallery, as_unit


@dataclass(frozen=True, kw_only=True)
class MatchProbability:
    """From the similarities of a query's results to the probability that each is of its class.

    A similarity of 0.8 means much where the query's other neighbors are at 0.5, and little where
    they are at 0.8 too. So the likelihood ratio has a center of its own for each query, given by b:
    the mean similarity of its cohort, the results behind nearly all that can be relevant.

        log Φ(s) = weight_s · min(s, ceiling) + weight_b · b + c
        p        = 1 / (1 + exp(-log Φ(s) - log(R / R_fitted)))

    with log Φ through a monotone curve where that helps, and R the number of relevant images that
    a query can expect to find.

    Args:
        odds: Log Φ.
        cohort: Begin and end of the ranks of the cohort.
        typical_cohort_mean: b for lists that end before the cohort begins.
        fitted_positives: R where the weights were fitted, for this cohort.
        positives: R where they are used.
        own_positives: R for queries that are among the images searched, and left out.
        check: How far the probabilities held on classes left out while fitting.
        source: The line of the first fit, which `for_gallery` keeps, to know it again by.
    """

    odds: Odds
    cohort: tuple[int, int]
    typical_cohort_mean: float
    fitted_positives: float
    positives: float
    own_positives: float
    check: Reliability = field(repr=False)
    source: Line = field(repr=False)

    def __post_init__(self) -> None:
        expected = (self.fitted_positives, self.positives, self.own_positives)
        if not all(map(math.isfinite, (*self.source, self.typical_cohort_mean, *expected))):
            raise ValueError("source, typical_cohort_mean and positives must be finite numbers")
        if min(expected) <= 0.0:
            raise ValueError("positives must be above zero")
        if not 0 <= self.cohort[0] < self.cohort[1]:
            raise ValueError(f"cohort must be ascending ranks, got {self.cohort}")

    @property
    def depth(self) -> int:
        """How many results a query's list should have, so that its cohort is among them."""
        return self.cohort[1]

    @classmethod
    def fit(
        cls,
        embeddings: Matrix | QueryGallery,
        labels: Labels | None = None,
        *,
        others: Matrix | None = None,
        seed: int = 0,
    ) -> "MatchProbability":
        """Fit to classes that the model was not trained on.

        Each image is searched for among all the others; 2,048 of them where there are more.

        Args:
            embeddings: One row per image, or a `QueryGallery` without a gallery. (N, D)
            labels: One label per row. (N,)
            others: Images of other classes, such as those trained on: each image is searched for
                among them too, which shows what similarities mean in a larger gallery. (M, D)
            seed: Random seed of that choice, and of the halves of classes that check each other.
        """
        query_gallery = QueryGallery.of(embeddings, labels)
        if not query_gallery.searches_itself:
            raise ValueError(
                "probabilities are fitted to searches of one set: leave the gallery out"
            )
        if len(query_gallery.codes) < 2:
            raise BadData("embeddings: a gallery needs at least two images")
        sizes = np.unique(query_gallery.codes, return_counts=True)[1]
        if sizes.max() < 2:
            raise BadData("labels: no two images share a class, so no result is relevant")
        if (classes := int((sizes > 1).sum())) < FEWEST_CLASSES:
            raise BadData(
                f"labels: match probabilities need at least {FEWEST_CLASSES} classes with two "
                f"images or more, got {classes}; hold out more classes"
            )
        expected = ExpectedPositives.of_classes(sizes)
        # Each was searched for among the others.
        positives = expected.own_positives
        searches = [query_gallery]
        if others is not None and len(others):
            searches.append(_among_others(query_gallery, as_unit(others, "others")))
        fit, cohort_mean = fit_odds(searches, expected.cohort, seed=seed)
        return cls(
            odds=fit.odds,
            cohort=expected.cohort,
            typical_cohort_mean=cohort_mean,
            fitted_positives=positives,
            positives=positives,
            own_positives=positives,
            check=fit.check,
            source=fit.odds.line,
        )

    def cohort_mean(self, similarities: ArrayLike) -> NDArray[np.float64]:
        """The mean similarity of each query's cohort, (..., 1); a typical one for shorter lists.

        Args:
            similarities: Similarities of one query's results along the last axis, in any order;
                -inf stands for no result. (..., K)
        """
        ordered = -np.sort(-np.asarray(similarities, dtype=np.float64), axis=-1)
        return mean_of_cohort(ordered, self.cohort, self.typical_cohort_mean)

    def probability(
        self,
        similarities: ArrayLike,
        *,
        cohort_mean: ArrayLike | None = None,
        own: bool = False,
    ) -> NDArray[np.float64]:
        """The probability of each result to be of its query's class.

        Args:
            similarities: Similarities of one query's results along the last axis, in any order;
                -inf stands for no result. (..., K)
            cohort_mean: Cohort mean of each query, as `cohort_mean` gives it for the unfiltered
                results. Taken from the similarities when None: then they must be the nearest
                results, unfiltered, and at least `depth` of them or all there are. (..., 1)
            own: Whether the queries are among the images searched, and left out of their results:
                then there is one relevant image less to be found.
        """
        s = np.atleast_1d(np.asarray(similarities, dtype=np.float64))
        if np.isnan(s).any():
            raise ValueError("similarities holds NaN")
        if cohort_mean is None:
            cohort_mean = self.cohort_mean(s)
        # One for each query: as a row they would be taken for one of each result.
        means = np.reshape(cohort_mean, (*s.shape[:-1], 1))
        expected = self.own_positives if own else self.positives
        shift = math.log(expected / self.fitted_positives)
        probability: NDArray[np.float64] = expit(self.odds(s, means) + shift)
        return probability.reshape(np.shape(similarities))

    def for_gallery(
        self, embeddings: Matrix, labels: Labels | None = None, *, positives: float | None = None
    ) -> "MatchProbability":
        """Probabilities for searches in another set than the one fitted on.

        A gallery whose labels give enough relevant results (200 images with another of their class,
        of 5 classes) gets weights of its own: nothing knows better which of its classes look alike.
        Otherwise the weights stay, and so does the prior where the labels have nothing to do with
        looks. The cohort moves back where queries can expect more relevant images than lie before
        it.

        Args:
            embeddings: What will be searched. (N, D)
            labels: One per row, where they are known: a query of one of their classes can expect Σ
                n_c² / N relevant images, and one that is among them Σ n_c (n_c - 1) / N. (N,)
            positives: R, how many relevant images a query can expect; as before when neither this
                nor labels are given.
        """
        gallery, ready = as_unit(embeddings, "embeddings"), self
        if len(gallery) < 2:
            raise BadData("embeddings: a gallery needs at least two images")
        expected: ExpectedPositives | None = None
        if positives is not None:
            expected = ExpectedPositives.of_number(positives, len(gallery))
        if labels is not None:
            query_gallery = QueryGallery.of(gallery, labels)
            sizes = np.unique(query_gallery.codes, return_counts=True)[1]
            try:
                if enough_to_fit(sizes):
                    ready = MatchProbability.fit(query_gallery)
                expected = expected or ExpectedPositives.of_classes(sizes)
            except BadData:  # labels that similarity tells nothing of, such as dates, are as none
                pass
        if expected is None:  # as before
            expected = ExpectedPositives(self.positives, self.own_positives, self.cohort)
        if ready is self:
            ready = self._with_cohort(gallery, max(self.cohort, expected.cohort))
        return dataclasses.replace(
            ready,
            positives=expected.positives,
            own_positives=expected.own_positives,
            source=self.source,
        )

    def _with_cohort(
        self, gallery: NDArray[np.float32], cohort: tuple[int, int]
    ) -> "MatchProbability":
        """The same weights for a gallery, and for a cohort farther back.

        Before a cohort so many times farther back lie so many times more irrelevant results: it
        takes as many times more relevant ones for the same odds.
        """
        typical = self.typical_cohort_mean
        if len(gallery) > cohort[0] + 1:
            found = nearest_neighbors(_unlabeled(gallery), cohort[1])
            typical = float(mean_of_cohort(found.similarities, cohort, typical).mean())
        farther = sum(cohort) / sum(self.cohort)
        return dataclasses.replace(
            self,
            cohort=cohort,
            typical_cohort_mean=typical,
            fitted_positives=self.fitted_positives * farther,
        )

    def as_record(self) -> dict[str, Any]:
        """What `save` writes: every field, its kind and a checksum."""
        return as_record(vars(self))

    def save(self, path: Path | str) -> None:
        """Write to a JSON file, atomically.

        Args:
            path: Path of the file, such as calibration.json in the folder of a run.
        """
        write_json(Path(path), self.as_record())

    @classmethod
    def load(cls, path: Path | str) -> "MatchProbability":
        """Read what `save` wrote, now or before; what is damaged or something else is refused.

        Args:
            path: Path of the file.
        """
        fields = read_fields(Path(path))
        try:
            return cls(**fields)
        except ValueError as error:
            raise DamagedFile(f"{path}: not a file that cbml wrote ({error})") from None


def _among_others(query_gallery: QueryGallery, others: NDArray[np.float32]) -> QueryGallery:
    """The same queries, searching each other and images that are relevant to none of them."""
    return dataclasses.replace(
        query_gallery,
        gallery_embeddings=np.concatenate([query_gallery.embeddings, others]),
        gallery_codes=np.concatenate([query_gallery.codes, np.full(len(others), -1)]),
        self_indices=np.arange(len(query_gallery.codes)),
    )


def _unlabeled(gallery: NDArray[np.float32]) -> QueryGallery:
    codes = np.zeros(len(gallery), dtype=np.int64)
    return QueryGallery(embeddings=gallery, codes=codes, class_labels=codes[:1])
