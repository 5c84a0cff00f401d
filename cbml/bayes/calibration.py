"""Log odds of a match, how far probabilities hold, and match probabilities on disk."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbml.errors import DamagedFile
from cbml.program import command
from cbml.regular import read_text

# Log odds as lines and curves.

Numbers = NDArray[np.float64]

# Groups of neighboring scores; each gets one point of the curve.
GROUPS = 200


@dataclass(frozen=True)
class MonotoneCurve:
    """Log odds that rise with the score: straight between points, level beyond them.

    Args:
        scores: Scores of the points, ascending. (P,)
        log_odds: At the points, never falling. (P,)
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
            scores: One for each place. (S,)
            positives: How many positives there are at each place. (S,)
            negatives: How many negatives there are. (S,)
        """
        from sklearn.isotonic import IsotonicRegression  # importing it takes as long as torch

        score, positive, negative = (
            np.asarray(part, dtype=np.float64) for part in (scores, positives, negatives)
        )
        order = np.argsort(score, kind="stable")
        score, positive, negative = score[order], positive[order], negative[order]
        # Both kinds weigh the same: where positives are rare, they still get half of the points.
        share = positive / max(positive.sum(), 1.0) + negative / max(negative.sum(), 1.0)
        position = (np.cumsum(share) - share / 2.0) / share.sum()
        group = np.clip(position * GROUPS, 0, GROUPS - 1).astype(np.int64)
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
    """Log odds as a weighted sum: the linear exponent of Φ, with a center for each query.

    Args:
        similarity_weight: Weight of the result's similarity, 1/β.
        cohort_weight: Weight of the mean similarity of the query's cohort.
        constant: Added to the sum.
        ceiling: The similarity above which more says no more: images of two classes can look
            the same, so that the most similar ones are not the surest.
    """

    similarity_weight: float
    cohort_weight: float
    constant: float
    ceiling: float = 1.0

    def score(self, similarities: ArrayLike, cohort_mean: ArrayLike) -> Numbers:
        """The log odds of results.

        Args:
            similarities: Similarities of results. (..., K)
            cohort_mean: Mean similarity of the cohorts of their queries. (..., 1)
        """
        s, b = (np.asarray(part, dtype=np.float64) for part in (similarities, cohort_mean))
        return (
            self.similarity_weight * np.minimum(s, self.ceiling)
            + self.cohort_weight * b
            + self.constant
        )


@dataclass(frozen=True)
class Odds:
    """Log odds by a line, and by a curve where that says more.

    Args:
        line: The weights and the constant.
        curve: From the line's log odds to better ones; None where the line is as good.
    """

    line: Line
    curve: MonotoneCurve | None = None

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.line)):
            raise ValueError("the numbers of a line must be finite")
        if not self.line.similarity_weight > 0.0:
            raise ValueError("odds must rise with the similarity")

    def __call__(self, similarities: ArrayLike, cohort_mean: ArrayLike) -> Numbers:
        """The log odds of results; -inf where there is none.

        Args:
            similarities: Similarities of results. (..., K)
            cohort_mean: Mean similarity of the cohorts of their queries. (..., 1)
        """
        odds = self.line.score(similarities, cohort_mean)
        if self.curve is None:
            return odds
        return np.where(np.isfinite(odds), self.curve(odds), odds)


# How far probabilities can be trusted: confidence against accuracy.


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Confidence and accuracy in bins of equal width, and what they sum up to.

        ECE    = Σ_bins  count/total · |confidence - accuracy|
        Brier  = mean (p - match)²
        loss   = mean -log p(what was the case)

    Args:
        confidence: Mean probability in each bin that is not empty.
        accuracy: Share of positives in it.
        counts: Number of pairs in each bin.
        ece: Expected calibration error.
        brier: Mean squared error of the probabilities.
        log_loss: Log loss per pair, in nats.
    """

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    counts: tuple[int, ...]
    ece: float
    brier: float
    log_loss: float

    @classmethod
    def of(
        cls, probabilities: ArrayLike, positives: ArrayLike, negatives: ArrayLike, *, bins: int = 10
    ) -> "Reliability":
        """Compare probabilities with counts of what they are about.

        Args:
            probabilities: One for each place. (S,)
            positives: Number of positives at each place; ones and zeros for single results. (S,)
            negatives: Number of negatives at each place. (S,)
            bins: Number of bins of equal width between 0 and 1.
        """
        p, positive, negative = (
            np.asarray(part, dtype=np.float64).ravel()
            for part in (probabilities, positives, negatives)
        )
        weight = positive + negative
        total = float(weight.sum())
        if not total > 0.0:
            raise ValueError("positives and negatives are all zero: nothing to compare with")
        position = np.clip((p * bins).astype(np.int64), 0, bins - 1)
        count, relevant, confidence = (
            np.bincount(position, weights=part, minlength=bins)
            for part in (weight, positive, weight * p)
        )
        used = count > 0
        count, relevant, confidence = count[used], relevant[used], confidence[used]
        sure = np.clip(p, 1e-12, 1.0 - 1e-12)
        return cls(
            confidence=tuple((confidence / count).tolist()),
            accuracy=tuple((relevant / count).tolist()),
            counts=tuple(int(number) for number in count),
            ece=float(np.abs(confidence - relevant).sum() / total),
            brier=float((positive * (1.0 - p) ** 2 + negative * p**2).sum() / total),
            log_loss=-float((positive * np.log(sure) + negative * np.log1p(-sure)).sum() / total),
        )

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> "Reliability":
        """What `as_dict` described; other fields or non-finite numbers are refused.

        Args:
            fields: The fields as read back from JSON.
        """
        check = cls(
            confidence=tuple(map(float, fields["confidence"])),
            accuracy=tuple(map(float, fields["accuracy"])),
            counts=tuple(map(int, fields["counts"])),
            ece=float(fields["ece"]),
            brier=float(fields["brier"]),
            log_loss=float(fields["log_loss"]),
        )
        if not len(check.confidence) == len(check.accuracy) == len(check.counts) > 0:
            raise ValueError("confidence, accuracy and counts of a check must be equally many")
        numbers = (*check.confidence, *check.accuracy, check.ece, check.brier, check.log_loss)
        if not all(map(math.isfinite, numbers)):
            raise ValueError("numbers of a check must be finite")
        return check


# Match probabilities on disk: plain JSON with a checksum, read with every number checked.

KIND = "cbml match probability 5"
_NUMBERS = ("typical_cohort_mean", "fitted_positives", "positives", "own_positives")


def as_record(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `MatchProbability` as plain values, with kind and checksum, for JSON."""
    plain = {
        **{name: fields[name] for name in _NUMBERS},
        "odds": _odds_fields(fields["odds"]),
        "source": list(fields["source"]),
        "cohort": list(fields["cohort"]),
        "check": fields["check"].as_dict(),
    }
    return sealed(KIND, plain)


def sealed(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Plain fields with their kind and their checksum."""
    record = {"kind": kind, **fields}
    return {**record, "sha256": _digest(record)}


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a `MatchProbability`; a file that is damaged or something else is refused."""
    fields = _unsealed(path)
    try:
        begin, end = fields["cohort"]
        return {
            **{name: float(fields[name]) for name in _NUMBERS},
            "odds": _odds(fields["odds"]),
            "source": Line(*map(float, fields["source"])),
            "cohort": (int(begin), int(end)),
            "check": Reliability.of_dict(fields["check"]),
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(f"{path}: not a file that cbml wrote ({error})") from None


def _unsealed(path: Path) -> dict[str, Any]:
    """What the file holds, if its checksum says that nobody has altered it."""
    try:
        record = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: not readable as JSON ({error}); restore a copy") from None
    if not isinstance(record, dict) or not str(record.get("kind")).startswith(KIND[:-1]):
        raise DamagedFile(f"{path}: not a file of kind {KIND!r}")
    if record["kind"] != KIND:
        raise DamagedFile(
            f"{path}: written by another version of cbml; write it again, for a run with  "
            f"{command('analyze', 'RUN')},  for a gallery with  {command('index', '--rebuild')}"
        )
    if record.pop("sha256", None) != _digest(record):
        raise DamagedFile(f"{path}: altered since it was written; restore a copy or write it again")
    return record


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _odds_fields(odds: Odds) -> dict[str, Any]:
    curve = None
    if odds.curve is not None:
        curve = [list(odds.curve.scores), list(odds.curve.log_odds)]
    return {"line": list(odds.line), "curve": curve}


def _odds(fields: Mapping[str, Any]) -> Odds:
    points = fields["curve"]
    curve = None if points is None else MonotoneCurve(*(tuple(map(float, part)) for part in points))
    return Odds(Line(*map(float, fields["line"])), curve)
