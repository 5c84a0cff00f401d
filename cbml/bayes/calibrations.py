"""Match probabilities as plain records, read with every number looked at."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbml.bayes.curve import MonotoneCurve
from cbml.bayes.odds import Line, Odds
from cbml.bayes.records import read_sealed
from cbml.bayes.reliability import Reliability
from cbml.errors import DamagedFile

if TYPE_CHECKING:
    from cbml.bayes.matching import MatchProbability

__all__ = ["KIND", "facts_of", "read_fields"]

KIND, EARLIER = "cbml match probability 2", "cbml match probability 1"
_NUMBERS = ("typical_background", "fitted_positives", "positives", "own_positives")


def facts_of(probability: "MatchProbability") -> dict[str, Any]:
    """Every field as plain values, ready for JSON.

    Args:
        probability: what to describe.
    """
    return {
        **{name: getattr(probability, name) for name in _NUMBERS},
        "by_query": _odds_facts(probability.by_query),
        "by_both": None if probability.by_both is None else _odds_facts(probability.by_both),
        "source": list(probability.source),
        "crowd": list(probability.crowd),
        "check": probability.check.as_dict(),
    }


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a `MatchProbability` from its file, of today's kind or the earlier one.

    Args:
        path: of the file; what is damaged or something else is refused.
    """
    facts = _facts(path)
    try:
        begin, end = facts["crowd"]
        both = facts["by_both"]
        return {
            **{name: float(facts[name]) for name in _NUMBERS},
            "by_query": _odds(facts["by_query"]),
            "by_both": None if both is None else _odds(both),
            "source": Line(*map(float, facts["source"])),
            "crowd": (int(begin), int(end)),
            "check": _check(facts["check"]),
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(f"{path}: not what this program writes ({error})") from None


def _facts(path: Path) -> dict[str, Any]:
    try:
        return read_sealed(path, KIND)
    except DamagedFile:
        if f'"{EARLIER}"' not in path.read_text(encoding="utf-8", errors="replace"):
            raise
    facts = read_sealed(path, EARLIER)  # one prior, and nothing of the result's background
    return {
        **facts,
        "own_positives": facts.get("positives"),
        "by_query": {name: facts.get(name) for name in ("line", "curve")},
        "by_both": None,
    }


def _odds_facts(odds: Odds) -> dict[str, Any]:
    curve = None
    if odds.curve is not None:
        curve = [list(odds.curve.scores), list(odds.curve.log_odds)]
    return {"line": list(odds.line), "curve": curve}


def _odds(facts: Mapping[str, Any]) -> Odds:
    points = facts["curve"]
    curve = None if points is None else MonotoneCurve(*(tuple(map(float, part)) for part in points))
    return Odds(Line(*map(float, facts["line"])), curve)


def _check(facts: Mapping[str, Any]) -> Reliability:
    check = Reliability(
        said=tuple(map(float, facts["said"])),
        seen=tuple(map(float, facts["seen"])),
        counts=tuple(map(int, facts["counts"])),
        ece=float(facts["ece"]),
        brier=float(facts["brier"]),
        log_loss=float(facts["log_loss"]),
    )
    if not len(check.said) == len(check.seen) == len(check.counts) > 0:
        raise ValueError("said, seen and counts of a check must be equally many")
    numbers = (*check.said, *check.seen, check.ece, check.brier, check.log_loss)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("numbers of a check must be finite")
    return check
