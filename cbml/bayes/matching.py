"""The probability that a search result is of the query's class."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from cbml.bayes.calibrations import KIND, facts_of, read_fields
from cbml.bayes.expected import Expected, enough_to_learn
from cbml.bayes.fitting import backgrounds
from cbml.bayes.learning import learn
from cbml.bayes.lists import crowd_means, nearest_lists
from cbml.bayes.odds import Line, Odds
from cbml.bayes.pairs import Rows, unit
from cbml.bayes.records import sealed
from cbml.bayes.reliability import Reliability
from cbml.errors import BadData, DamagedFile
from cbml.files import write_json
from cbml.index.inputs import Labels, Matrix, as_labels

__all__ = ["MatchProbability"]


@dataclass(frozen=True, kw_only=True)
class MatchProbability:
    """From the similarities of a query's results to the probability that each is of its class.

    A similarity of 0.8 means much where the query's other neighbours are at 0.5, and little where
    they are at 0.8 too. So the likelihood ratio has a centre of its own for each query, told by its
    background b: the mean similarity of its crowd, results behind nearly all that can be right. The
    result has a background b_r of its own, that of a search with it, and it tells as much.

        log Φ(s) = weight_s · min(s, ceiling) + weight_b · b + weight_r · b_r + constant
        p        = 1 / (1 + exp(-log Φ(s) - log(R / R_fitted)))

    with log Φ through a monotone curve where that helps, and R the number of right pictures that a
    query can expect to find.

    Args:
        by_query: log Φ without b_r, for where only similarities are known.
        by_both: log Φ with b_r; None where that says no more.
        crowd: begin and end of the ranks of the crowd.
        typical_background: for lists that end before the crowd begins.
        fitted_positives: R where the weights were fitted, for this crowd.
        positives: R where they are used.
        own_positives: R for queries that are among the pictures searched, and left out.
        check: how far the probabilities held on classes left out while fitting, b_r known.
        source: the line of the first fit, which `for_gallery` keeps, to know it again by.
    """

    by_query: Odds
    by_both: Odds | None = field(repr=False)
    crowd: tuple[int, int]
    typical_background: float
    fitted_positives: float
    positives: float
    own_positives: float
    check: Reliability = field(repr=False)
    source: Line = field(repr=False)

    def __post_init__(self) -> None:
        expected = (self.fitted_positives, self.positives, self.own_positives)
        if not all(map(math.isfinite, (*self.source, self.typical_background, *expected))):
            raise ValueError("source, typical_background and positives must be finite numbers")
        if min(expected) <= 0.0:
            raise ValueError("positives must be above zero")
        if not 0 <= self.crowd[0] < self.crowd[1]:
            raise ValueError(f"crowd must be ascending ranks, got {self.crowd}")

    @property
    def depth(self) -> int:
        """How many results a query's list should have, so that its background is known."""
        return self.crowd[1]

    @classmethod
    def fit(cls, embeddings: Matrix, labels: Labels, *, seed: int = 0) -> "MatchProbability":
        """Learn from classes that the model was not trained on.

        Each picture is searched for among all the others; 2,048 of them where there are more.

        Args:
            embeddings: one row per picture. (N, D)
            labels: one per row. (N,)
            seed: of that choice, and of the halves of classes that check each other.
        """
        rows = _unit(embeddings)
        names = as_labels(labels, len(rows), "labels")
        _, codes, sizes = np.unique(names, return_inverse=True, return_counts=True)
        if sizes.max() < 2:
            raise BadData("labels: no two pictures share a class, so that no result is right")
        expected = Expected.of_classes(sizes)
        learned = learn(rows, codes, expected.crowd, seed=seed)
        query, both = learned.by_query, learned.by_both
        # Each was searched for among the others.
        positives = expected.own_positives
        return cls(
            by_query=query.odds,
            by_both=None if both is None else both.odds,
            crowd=expected.crowd,
            typical_background=learned.background,
            fitted_positives=positives,
            positives=positives,
            own_positives=positives,
            check=(both or query).check,
            source=query.odds.line,
        )

    def background(self, similarities: ArrayLike) -> NDArray[np.float64]:
        """The mean similarity of each query's crowd, (..., 1); a typical one for shorter lists.

        Args:
            similarities: of one query's results along the last axis, in any order; -inf stands for
                no result. (..., K)
        """
        ordered = -np.sort(-np.asarray(similarities, dtype=np.float64), axis=-1)
        return backgrounds(ordered, self.crowd, self.typical_background)

    def result_background(self, embeddings: Matrix, places: ArrayLike) -> NDArray[np.float64]:
        """The backgrounds of results in the set that was searched, of the shape of the places.

        Each different result costs a search.

        Args:
            embeddings: what was searched. (N, D)
            places: of the results; below zero for none. (..., K)
        """
        wanted = np.asarray(places, dtype=np.int64)
        rows = unit(embeddings, "embeddings")
        return crowd_means(rows, wanted, self.crowd, self.typical_background)

    def probability(
        self,
        similarities: ArrayLike,
        *,
        background: ArrayLike | None = None,
        result_background: ArrayLike | None = None,
        own: bool = False,
    ) -> NDArray[np.float64]:
        """The probability of each result to be of its query's class.

        Args:
            similarities: of one query's results along the last axis, in any order; -inf stands for
                no result. (..., K)
            background: of the queries, as `background` gives it for their unfiltered results. Taken
                from the similarities when None: then they must be the nearest results, unfiltered,
                and at least `depth` of them or all there are. (..., 1)
            result_background: of the results, as `result_background` gives it; the probabilities
                are better with it. (..., K)
            own: whether the queries are among the pictures searched, and left out of their results:
                then there is one right picture less to be found.
        """
        s = np.atleast_1d(np.asarray(similarities, dtype=np.float64))
        if np.isnan(s).any():
            raise ValueError("similarities holds NaN")
        if background is None:
            background = self.background(s)
        # One for each query: as a row they would be taken for one of each result.
        around = np.reshape(background, (*s.shape[:-1], 1))
        if self.by_both is None or result_background is None:
            odds = self.by_query(s, around)
        else:
            odds = self.by_both(s, around, np.reshape(result_background, s.shape))
        expected = self.own_positives if own else self.positives
        shift = math.log(expected / self.fitted_positives)
        probability: NDArray[np.float64] = expit(odds + shift)
        return probability.reshape(np.shape(similarities))

    def for_gallery(
        self, embeddings: Matrix, labels: Labels | None = None, *, positives: float | None = None
    ) -> "MatchProbability":
        """Probabilities for searches in another set than the one fitted on.

        A gallery whose labels give enough right results (200 pictures with another of their class,
        of 5 classes) teaches its own weights: nothing knows better which of its classes look alike.
        Otherwise the weights stay, and so does the prior where the labels have nothing to do with
        looks. The crowd moves back where queries can expect more right pictures than lie before it.

        Args:
            embeddings: what will be searched. (N, D)
            labels: one per row, where they are known: a query of one of their classes can expect
                Σ n_c² / N right pictures, and one that is among them itself Σ n_c (n_c - 1) / N.
                (N,)
            positives: R, how many right pictures a query can expect; as where it was fitted when
                neither this nor labels are given.
        """
        rows, ready = _unit(embeddings), self
        expected: Expected | None = None
        if positives is not None:
            expected = Expected.of_number(positives, len(rows))
        if labels is not None:
            names = as_labels(labels, len(rows), "labels")
            sizes = np.unique(names, return_counts=True)[1]
            try:
                if enough_to_learn(sizes):
                    ready = MatchProbability.fit(rows, names)
                expected = expected or Expected.of_classes(sizes)
            except BadData:  # labels that similarity tells nothing of, such as dates, are as none
                pass
        if expected is None:  # as where it was fitted
            expected = Expected(self.fitted_positives, self.fitted_positives, self.crowd)
        if ready is self:
            ready = self._with_crowd(rows, max(self.crowd, expected.crowd))
        return dataclasses.replace(
            ready,
            positives=expected.positives,
            own_positives=expected.own_positives,
            source=self.source,
        )

    def _with_crowd(self, rows: Rows, crowd: tuple[int, int]) -> "MatchProbability":
        """The same weights for a gallery, and for a crowd farther back.

        Before a crowd so many times farther back lie so many times more wrong results: it takes as
        many times more right ones for the same odds.
        """
        typical = self.typical_background
        if len(rows) > crowd[0] + 1:
            lists = nearest_lists(rows, crowd[1])
            typical = float(backgrounds(lists.similarities, crowd, typical).mean())
        farther = sum(crowd) / sum(self.crowd)
        return dataclasses.replace(
            self,
            crowd=crowd,
            typical_background=typical,
            fitted_positives=self.fitted_positives * farther,
        )

    def as_record(self) -> dict[str, Any]:
        """What `save` writes: every field, its kind and a checksum."""
        return sealed(KIND, facts_of(self))

    def save(self, path: Path | str) -> None:
        """Write to a JSON file, atomically.

        Args:
            path: of the file, such as calibration.json in the folder of a run.
        """
        write_json(Path(path), self.as_record())

    @classmethod
    def load(cls, path: Path | str) -> "MatchProbability":
        """Read what `save` wrote, now or before; what is damaged or something else is refused.

        Args:
            path: of the file.
        """
        fields = read_fields(Path(path))
        try:
            return cls(**fields)
        except ValueError as error:
            raise DamagedFile(f"{path}: not what this program writes ({error})") from None


def _unit(embeddings: Matrix) -> Rows:
    rows = unit(embeddings, "embeddings")
    if len(rows) < 2:
        raise BadData("embeddings: one picture is no gallery")
    return rows
