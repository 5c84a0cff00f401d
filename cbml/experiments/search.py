"""A search by Optuna over options of a row, judged on validation classes alone.

The records are the search's memory: each suggestion follows from those finished before it, so that
an interrupted search asks for the same run again, and that run resumes.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbml.errors import BadData, MissingExtra
from cbml.experiments.plans import Plan, table_rows, trial_unit
from cbml.experiments.records import Record, read_records, records_file
from cbml.experiments.running import run_units
from cbml.experiments.sources import Sources
from cbml.experiments.sweeps import check_key, combinations
from cbml.training import Listener

__all__ = ["search_row"]

# A range that spans this factor is searched by its logarithm.
_WIDE = 50.0
_FROM = "search"
_ATTEMPTS = 50


def search_row(
    plan: Plan,
    ranges: Sequence[str],
    *,
    count: int,
    out: Path,
    sources: Sources,
    listener: Listener,
) -> list[Record]:
    """The records of a search, the best in validation first; the test is never looked at.

    Args:
        plan: of exactly one row.
        ranges: "key=low:high" for numbers, "key=a,b,c" for words.
        count: runs in all, those of earlier calls included.
        out: folder of runs and records.
        sources: places of pictures and weights.
        listener: hears of every step.
    """
    rows = table_rows(plan)
    if len(rows) != 1:
        labels = ", ".join(repr(row.label(plan.scale)) for row in rows)
        raise BadData(f"--search: choose one row by --only; these fit: {labels}")
    fixed, *others = combinations(plan.sweeps)
    if others:
        raise BadData(f"--set {' '.join(plan.sweeps)}: give one value beside --search")
    space = _space(ranges)
    first = trial_unit(rows[0], plan, fixed, _FROM)
    while len(done := _done(records_file(out, first), first.row, fixed, space)) < count:
        overrides = _new_suggestion(space, done)
        if overrides is None:
            listener.say(f"{len(done)} runs: nothing new is left to try")
            break
        unit = trial_unit(rows[0], plan, (*fixed, *overrides), _FROM)
        progress = run_units([unit], out, sources=sources, listener=listener)
        if progress.refused:
            raise BadData("; ".join(progress.refused))
        if progress.elsewhere:
            raise BadData(f"{unit.name}: another process searches here; let it finish")
    return sorted(done, key=_score, reverse=True)


def _new_suggestion(space: dict[str, Any], done: Sequence[Record]) -> tuple[str, ...] | None:
    """Something not done before; None where a space of words seems to be searched through."""
    known = {tuple(record["overrides"][-len(space) :]) for record in done}
    for attempt in range(_ATTEMPTS):
        suggested = _suggestion(space, done, seed=len(done) + attempt)
        if suggested not in known:
            return suggested
    return None


def _suggestion(space: dict[str, Any], done: Sequence[Record], *, seed: int) -> tuple[str, ...]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        for record in done:
            study.add_trial(
                optuna.trial.create_trial(
                    params=_values(record, space), distributions=space, value=_score(record)
                )
            )
    asked = study.ask(space).params
    return tuple(f"{key}={_text(asked[key])}" for key in space)


def _space(ranges: Sequence[str]) -> dict[str, Any]:
    try:
        from optuna.distributions import CategoricalDistribution, FloatDistribution
    except ImportError:
        raise MissingExtra("optuna", "sweep") from None
    space: dict[str, Any] = {}
    for given in ranges:
        key, _, values = given.partition("=")
        check_key(key, f"--search {given}")
        low, colon, high = values.partition(":")
        try:
            if colon:
                first, last = float(low), float(high)
                wide = first > 0 and last / first >= _WIDE
                space[key] = FloatDistribution(first, last, log=wide)
            else:
                words = values.split(",")
                if len(words) < 2:
                    raise ValueError("one value is nothing to search")
                space[key] = CategoricalDistribution(words)
        except ValueError as error:
            raise BadData(f"--search {given}: write key=low:high or key=a,b ({error})") from None
    return space


def _done(file: Path, label: str, fixed: tuple[str, ...], space: dict[str, Any]) -> list[Record]:
    """Finished runs of the same row inside the space, in an order that all who look agree on."""
    found = []
    for record in read_records(file):
        if record["rate_from"] == _FROM and record["row"] == label:
            words = record["overrides"]
            keys = [word.partition("=")[0] for word in words[len(fixed) :]]
            alike = words[: len(fixed)] == list(fixed) and keys == list(space)
            if alike and _inside(record, space):
                found.append(record)
    return found


def _inside(record: Record, space: dict[str, Any]) -> bool:
    """Whether a search of this space could have asked for a run; an earlier one may have had other
    ranges."""
    for key, word in _words(record, space).items():
        asked = space[key]
        if hasattr(asked, "choices"):
            if word not in asked.choices:
                return False
        elif not float(_text(asked.low)) <= float(word) <= float(_text(asked.high)):
            return False
    return True


def _words(record: Record, space: dict[str, Any]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in record["overrides"][-len(space) :])


def _values(record: Record, space: dict[str, Any]) -> dict[str, Any]:
    return {
        # Rounded as text, a number can lie just beyond the end of its range.
        key: word
        if hasattr(space[key], "choices")
        else min(max(float(word), space[key].low), space[key].high)
        for key, word in _words(record, space).items()
    }


def _score(record: Record) -> float:
    if record["failed"] is not None:
        return 0.0
    return float(record["scores"]["validation"]["recall@1"])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
