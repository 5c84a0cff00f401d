"""Which jobs a table asks for: its rows at a scale, seeds, trials of the learning rate, sweeps."""

import dataclasses
import fnmatch
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cbml.errors import BadData
from cbml.experiments.jobs import Job, Record, read_records, validation_score
from cbml.experiments.rows import Row, Scale, Table, row_config
from cbml.experiments.tables import LOSS_ABLATION, find_table
from cbml.program import command
from cbml.runs import FLAT_KEYS, parse_overrides, plain_value

# Every method gets the same rates to choose from, so that none is tuned more than another. The
# authors' program has 3e-5 for the paper's networks.
LEARNING_RATES: dict[Scale, tuple[float, ...]] = {
    "laptop": (1e-4, 2e-4, 4e-4, 8e-4),
    "full": (1e-5, 3e-5, 1e-4, 3e-4),
}
_TRIAL_SEED = 0
_TRIAL = "trial"
# What has an option of its own on the command line.
_OPTIONS = {"seed": "seeds", "data": "data", "model_selection": "model-selection"}

_Scores = dict[float, float]  # learning rate -> validation Recall@1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which rows of a table to run, where, and with which changes.

    Args:
        table: The table to plan for.
        scale: Scale of the runs, "full" or "laptop".
        data: Name of a dataset; at the full scale None takes all datasets of the table.
        model_selection: "validation" chooses the model on held-out training classes, "test" on the
            test classes, as the paper does: optimistic.
        only: Patterns with * and ?; rows whose name or label fits none are left out.
        sweeps: Setting -> its values; every combination is a job of its own.
    """

    table: Table
    scale: Scale
    data: str | None = None
    model_selection: Literal["validation", "test"] = "validation"
    only: tuple[str, ...] = ()
    sweeps: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def settings(self, *, without: str = "") -> list[dict[str, Any]]:
        """Every combination of the values of the sweeps.

        Args:
            without: Key of a sweep to leave out.
        """
        kept = {key: values for key, values in self.sweeps.items() if key != without}
        return [dict(zip(kept, one, strict=True)) for one in itertools.product(*kept.values())]


def parse_sweeps(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Sweeps from the words of the command line.

    Args:
        texts: Texts of the form "key=value" or "key=value,value".
    """
    sweeps: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise BadData(f"--set {text}: write key=value or key=value,value")
        check_setting(key, f"--set {text}")
        if key == "weights" and "path:" in values:  # its hash names the run, not its place
            raise BadData(f"--set {text}: use --weights instead")
        sweeps[key] = tuple(_value(key, value) for value in values.split(","))
    return sweeps


def check_setting(key: str, asked: str) -> None:
    """Refuse what has an option of its own on the command line; `asked` is how it was asked for."""
    if key in _OPTIONS:
        raise BadData(f"{asked}: use --{_OPTIONS[key]} instead")


def _value(key: str, text: str) -> Any:
    if key not in FLAT_KEYS:
        return plain_value(text)
    section, name = FLAT_KEYS[key]
    return parse_overrides([f"{key}={text}"])[section][name]


def table_rows(plan: Plan) -> list[Row]:
    """The rows of a table that a plan asks for.

    Args:
        plan: The table, and which of its rows are wanted.
    """
    rows = plan.table.rows_for(plan.scale, plan.data)
    if not rows:
        known = dict.fromkeys(row.data for row in plan.table.rows)
        raise BadData(f"--data {plan.data}: {plan.table.name} has rows for {', '.join(known)}")
    wanted = [row for row in rows if _fits(row, plan)]
    if not wanted:
        labels = ", ".join(repr(row.label(plan.scale)) for row in rows)
        raise BadData(f"--only {' '.join(plan.only)}: matches no row; the rows are {labels}")
    return wanted


def _fits(row: Row, plan: Plan) -> bool:
    """Whether a pattern fits the row's name, which is the same at every scale, or its label."""
    names = {row.method, row.label(plan.scale)}
    fits = any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in plan.only)
    return fits or not plan.only


def plan_jobs(plan: Plan, seeds: Sequence[int], trials: Iterable[Record] = ()) -> list[Job]:
    """The jobs of a plan, seed by seed, so that a part of the work is a whole table.

    Args:
        plan: The rows, datasets and seeds asked for.
        seeds: Random seeds of the runs.
        trials: Records that decide the learning rate of each row that has some; a row without
            takes that of its family, or of the row that it names.
    """
    tried = _Trials(plan.scale, trials)
    jobs = []
    for seed, row, overrides in itertools.product(seeds, table_rows(plan), plan.settings()):
        rate = None if "learning_rate" in overrides else _learning_rate(row, plan, overrides, tried)
        chosen = {} if rate is None else {"learning_rate": rate}
        config = row_config(row, plan.scale, chosen | overrides, seed)
        # Without labels nothing is chosen, and the last model is the one.
        if plan.model_selection == "test" and row.labels == "known":
            config = config.replace(data={"model_selection": "test", "validation": 0.0})
        jobs.append(
            Job(
                table=plan.table.name,
                row=row.label(plan.scale),
                config=config,
                scale=plan.scale,
                scored=row.scored,
                overrides=overrides,
                learning_rate_from="config" if rate is None else "trials on validation classes",
            )
        )
    return jobs


def planned_jobs(plan: Plan, out: Path, *, seeds: Sequence[int], trials: bool) -> list[Job]:
    """The trials of a plan, or its jobs at the learning rates that trials in a folder decided.

    Args:
        plan: What is asked for.
        out: Folder of runs and records.
        seeds: Random seeds of the runs.
        trials: Whether learning rates are to be tried.
    """
    if trials:
        return plan_trials(plan)
    tried = [
        out / f"{table}-{plan.scale}" / f"{data}-trials.jsonl"
        for table in dict.fromkeys((plan.table.name, LOSS_ABLATION.name))
        for data in dict.fromkeys(row.data for row in table_rows(plan))
    ]
    return plan_jobs(plan, seeds, [record for path in tried for record in read_records(path)])


def plan_trials(plan: Plan) -> list[Job]:
    """One job for each row and each learning rate; the test classes are never scored.

    Args:
        plan: What is asked for; its sweep of learning_rate takes the place of LEARNING_RATES, to
            continue where the best rate of a row lies at their edge.
    """
    rates = plan.sweeps.get("learning_rate") or LEARNING_RATES[plan.scale]
    return [
        trial_job(row, plan, {**overrides, "learning_rate": float(rate)}, _TRIAL)
        for row, overrides in itertools.product(
            table_rows(plan), plan.settings(without="learning_rate")
        )
        for rate in rates
    ]


def trial_job(row: Row, plan: Plan, overrides: Mapping[str, Any], kind: str) -> Job:
    """A job that is judged on validation classes alone; `kind` says what it is for."""
    label = row.label(plan.scale)
    config = row_config(row, plan.scale, overrides, _TRIAL_SEED)
    if config.data.labels != "known" or not config.data.validation:
        raise BadData(
            f"{label}: without labels and held-out classes there is nothing to score trials with"
        )
    return Job(
        table=plan.table.name,
        row=label,
        config=config,
        scale=plan.scale,
        scored=("validation",),
        overrides=dict(overrides),
        learning_rate_from=kind,
    )


class _Trials:
    """What each learning rate gave, for rows and for families of rows.

    A family has for each rate the best of its rows; a run that broke off counts as the worst.
    """

    def __init__(self, scale: Scale, records: Iterable[Record]) -> None:
        self.rows: dict[tuple[str, str, str], _Scores] = {}
        self.families: dict[tuple[str, str], _Scores] = {}
        labels: dict[str, dict[str, str]] = {}
        for record in records:
            if record["learning_rate_from"] != _TRIAL:
                continue
            table, row = record["table"], record["row"]
            others = dict(record["overrides"])
            rate = float(others.pop("learning_rate"))
            score = validation_score(record)
            self.rows.setdefault((table, row, _text(others)), {})[rate] = score
            if table not in labels:
                labels[table] = _family_labels(table, scale)
            if not others and row in labels[table]:
                best = self.families.setdefault((table, labels[table][row]), {})
                best[rate] = max(score, best.get(rate, -1.0))


def _family_labels(table: str, scale: Scale) -> dict[str, str]:
    rows = find_table(table).rows
    return {row.label(scale): row.family_label(scale) for row in rows}


def _text(overrides: Mapping[str, Any]) -> str:
    return json.dumps(overrides, sort_keys=True)


def _learning_rate(
    row: Row, plan: Plan, overrides: Mapping[str, Any], tried: _Trials
) -> float | None:
    """The best rate of the first of the places where a row's rate can have been tried."""
    for table, label, scores in _candidates(row, plan, overrides, tried):
        if scores:
            missing = sorted(set(LEARNING_RATES[plan.scale]) - set(scores))
            if missing:
                raise BadData(
                    f"{label}: the trials with learning rates {missing} are not done; run "
                    f"{command('reproduce', table, '--trials')} for it first"
                )
            return best_learning_rate(scores)
    return None


def _candidates(
    row: Row, plan: Plan, overrides: Mapping[str, Any], tried: _Trials
) -> Iterable[tuple[str, str, _Scores]]:
    table, scale, tuning = plan.table.name, plan.scale, LOSS_ABLATION.name
    label, family = row.label(scale), row.family_label(scale)
    yield table, label, tried.rows.get((table, label, _text(overrides)), {})
    yield table, label, tried.rows.get((table, label, _text({})), {})
    yield table, family, tried.families.get((table, family), {})
    other = row.tuned_as or plan.table.tuned_as
    if other is None:
        return
    named = next(one for one in LOSS_ABLATION.rows if one.method == other)
    named = dataclasses.replace(named, data=row.data, backbone=row.backbone)
    label, family = named.label(scale), named.family_label(scale)
    yield table, label, tried.rows.get((table, label, _text({})), {})
    yield tuning, label, tried.rows.get((tuning, label, _text({})), {})
    yield tuning, family, tried.families.get((tuning, family), {})


def best_learning_rate(scores: Mapping[float, float]) -> float:
    """The learning rate with the best score, the lower of equals."""
    return min(scores, key=lambda rate: (-scores[rate], rate))
