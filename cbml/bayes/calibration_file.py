"""Match probabilities on disk: plain JSON with a checksum, read with every number checked."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbml.bayes.log_odds import Line, MonotoneCurve, Odds
from cbml.bayes.reliability import Reliability
from cbml.errors import DamagedFile

if TYPE_CHECKING:
    from cbml.bayes.match_probability import MatchProbability

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


def as_record(probability: "MatchProbability") -> dict[str, Any]:
    """Every field as plain values, with its kind and a checksum, ready for JSON."""
    fields = {
        **{name: getattr(probability, name) for name in _NUMBERS},
        "by_query": _odds_fields(probability.by_query),
        "by_both": None if probability.by_both is None else _odds_fields(probability.by_both),
        "source": list(probability.source),
        "cohort": list(probability.cohort),
        "check": probability.check.as_dict(),
    }
    return sealed(KIND, fields)


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
            "check": _check(fields["check"]),
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(f"{path}: not what this program writes ({error})") from None


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


def _check(fields: Mapping[str, Any]) -> Reliability:
    check = Reliability(
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
