"""A search by Optuna over options of a row, judged on validation classes alone.

The records are the search's memory: each suggestion follows from those finished before it, so that
an interrupted search asks for the same run again, and that run resumes.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbml.errors import BadData, MissingExtra
from cbml.experiments.plans import TRIAL_SEED, Plan, row_recipe, table_rows
from cbml.experiments.records import Record, read_records, records_file
from cbml.experiments.rows import Row
from cbml.experiments.running import run_units
from cbml.experiments.sources import Sources
from cbml.experiments.units import Unit
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
    if rows[0].labels == "pseudo":
        raise BadData(f"{rows[0].label(plan.scale)}: without labels there is nothing to judge by")
    space = _space(ranges)
    file = records_file(out, _unit(plan, rows[0], ()))
    while len(done := _done(file, rows[0].label(plan.scale), plan, space)) < count:
        overrides = _new_suggestion(space, done)
        if overrides is None:
            listener.say(f"{len(done)} runs: nothing new is left to try")
            break
        unit = _unit(plan, rows[0], overrides)
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


def _unit(plan: Plan, row: Row, overrides: tuple[str, ...]) -> Unit:
    return Unit(
        table=plan.table.name,
        row=row.label(plan.scale),
        recipe=row_recipe(row, plan.scale, (*plan.sweeps, *overrides), TRIAL_SEED),
        scale=plan.scale,
        scored=("validation",),
        overrides=(*plan.sweeps, *overrides),
        rate_from=_FROM,
    )


def _done(file: Path, label: str, plan: Plan, space: dict[str, Any]) -> list[Record]:
    """Finished runs of the same search, in an order that does not depend on who ran them."""
    found = []
    for record in read_records(file):
        if record["rate_from"] == _FROM and record["row"] == label:
            keys = [word.partition("=")[0] for word in record["overrides"]]
            fixed = record["overrides"][: len(plan.sweeps)]
            if keys[len(plan.sweeps) :] == list(space) and fixed == list(plan.sweeps):
                found.append(record)
    return found


def _values(record: Record, space: dict[str, Any]) -> dict[str, Any]:
    words = dict(word.split("=", 1) for word in record["overrides"][-len(space) :])
    kinds = {key: str if hasattr(space[key], "choices") else float for key in space}
    return {key: kinds[key](words[key]) for key in space}


def _score(record: Record) -> float:
    if record["failed"] is not None:
        return 0.0
    return float(record["scores"]["validation"]["recall@1"])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
