"""How far probabilities hold, and match probabilities on disk."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cbml.bayes.log_odds import Line, MonotoneCurve, Odds
from cbml.errors import DamagedFile

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
        place = np.clip((p * bins).astype(np.int64), 0, bins - 1)
        count, relevant, confidence = (
            np.bincount(place, weights=part, minlength=bins)
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

KIND = "cbml match probability 3"
_EARLIER = ("cbml match probability 2", "cbml match probability 1")
# What fields of the earlier kinds are called now.
_RENAMED = {
    "crowd": "cohort",
    "typical_background": "typical_cohort_mean",
    "said": "confidence",
    "seen": "accuracy",
}
_NUMBERS = ("typical_cohort_mean", "fitted_positives", "positives", "own_positives")


def as_record(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `MatchProbability` as plain values, with kind and checksum, for JSON."""
    both = fields["by_both"]
    plain = {
        **{name: fields[name] for name in _NUMBERS},
        "by_query": _odds_fields(fields["by_query"]),
        "by_both": None if both is None else _odds_fields(both),
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
    fields = _current(_unsealed(path))
    try:
        begin, end = fields["cohort"]
        both = fields["by_both"]
        return {
            **{name: float(fields[name]) for name in _NUMBERS},
            "by_query": _odds(fields["by_query"]),
            "by_both": None if both is None else _odds(both),
            "source": Line(*map(float, fields["source"])),
            "cohort": (int(begin), int(end)),
            "check": Reliability.of_dict(fields["check"]),
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(f"{path}: not a file that cbml wrote ({error})") from None


def _unsealed(path: Path) -> dict[str, Any]:
    """What the file holds, if its checksum says that nobody has altered it."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: not readable as JSON ({error}); restore a copy") from None
    if not isinstance(record, dict) or record.get("kind") not in (KIND, *_EARLIER):
        raise DamagedFile(f"{path}: not a file of kind {KIND!r}")
    if record.pop("sha256", None) != _digest(record):
        raise DamagedFile(f"{path}: altered since it was written; restore a copy or write it again")
    return record


def _current(record: dict[str, Any]) -> dict[str, Any]:
    """The record of an earlier kind as one of today's."""
    kind = record.pop("kind")
    if kind == KIND:
        return record
    record = {_RENAMED.get(name, name): value for name, value in record.items()}
    if isinstance(check := record.get("check"), dict):
        record["check"] = {_RENAMED.get(name, name): value for name, value in check.items()}
    if kind == _EARLIER[-1]:  # one prior, and nothing of the result's cohort
        record["own_positives"] = record.get("positives")
        record["by_query"] = {name: record.get(name) for name in ("line", "curve")}
        record["by_both"] = None
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
