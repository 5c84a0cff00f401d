"""Which units a table asks for: its rows at a scale, seeds, trials of the learning rate, sweeps."""

import dataclasses
import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cbml.errors import BadData
from cbml.experiments.records import Record
from cbml.experiments.rows import Row, Table
from cbml.experiments.scales import base_recipe, loss_changes, pseudo_changes
from cbml.experiments.sweeps import changed_recipe, combinations
from cbml.experiments.units import Protocol, Scale, Unit
from cbml.training import Recipe, with_overrides

__all__ = [
    "RATES",
    "Plan",
    "plan_trials",
    "plan_units",
    "row_recipe",
    "table_rows",
    "trial_tables",
    "trial_unit",
]

# Every method gets the same rates to choose from, so that none is tuned more than another. The
# authors' program has 3e-5 for the paper's networks.
RATES: dict[Scale, tuple[float, ...]] = {
    "laptop": (1e-4, 2e-4, 4e-4, 8e-4),
    "full": (1e-5, 3e-5, 1e-4, 3e-4),
}
_TRIAL_SEED = 0
_TRIAL = "trial"
_RATE = "learning_rate="
_TUNING = "loss-ablation"  # the table whose trials others borrow
# A table, a row of it, and what was changed in the row beside the learning rate.
Tried = tuple[str, str, tuple[str, ...]]
_Scores = dict[float, float]  # rate -> validation Recall@1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked for of a table.

    Args:
        table: the rows.
        scale: "full" or "laptop".
        data: name of a picture set; at the full scale None takes all sets of the table.
        protocol: how the model is chosen.
        only: patterns with * and ?; rows whose label fits none are left out.
        sweeps: "key=value" or "key=value,value"; every combination is a unit of its own.
    """

    table: Table
    scale: Scale
    data: str | None = None
    protocol: Protocol = "honest"
    only: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()


def table_rows(plan: Plan) -> list[Row]:
    """The rows of a table that a plan asks for.

    Args:
        plan: what is asked for.
    """
    rows = [row for row in plan.table.rows if plan.data in (None, row.data)]
    if plan.scale == "laptop":
        rows = plan.table.laptop_rows(plan.data or "emoji")
    elif not rows:
        sets = {row.data: None for row in plan.table.rows}
        raise BadData(f"--data {plan.data}: {plan.table.name} has rows for {', '.join(sets)}")
    wanted = [row for row in rows if _fits(row.label(plan.scale), plan.only)]
    if not wanted:
        labels = ", ".join(repr(row.label(plan.scale)) for row in rows)
        raise BadData(f"--only {' '.join(plan.only)}: fits no row; the rows are {labels}")
    return wanted


def row_recipe(row: Row, scale: Scale, overrides: Iterable[str] = (), seed: int = 0) -> Recipe:
    """The recipe of a row.

    Args:
        row: of a table.
        scale: "full" or "laptop".
        overrides: further changes, as "key=value"; an option of the loss needs no "loss." before.
        seed: of everything random.
    """
    recipe = base_recipe(scale, row.data, row.backbone)
    if row.labels == "pseudo":
        recipe = with_overrides(recipe, pseudo_changes(row.data))
    recipe = with_overrides(recipe, row.changes)
    recipe = with_overrides(recipe, loss_changes(scale, recipe.loss))
    recipe = with_overrides(recipe, (f"dim={row.dim}", f"seed={seed}"))
    return changed_recipe(recipe, tuple(overrides))


def plan_units(plan: Plan, seeds: Sequence[int], trials: Iterable[Record] = ()) -> list[Unit]:
    """The units of a plan, seed by seed, so that a part of the work is a whole table.

    Args:
        plan: what is asked for.
        seeds: of the runs.
        trials: records that decide the learning rate of each row that has some; a row without
            takes that of the same method with other parts on or off, or of the row that it names.
    """
    scores = _tried(trials)
    units = []
    for seed, row, overrides in itertools.product(
        seeds, table_rows(plan), combinations(plan.sweeps)
    ):
        given = any(override.startswith(_RATE) for override in overrides)
        rate = None if given else _rate_of(row, plan, overrides, scores)
        chosen = () if rate is None else (f"{_RATE}{rate}",)
        recipe = row_recipe(row, plan.scale, (*chosen, *overrides), seed)
        # Without labels nothing is chosen, and the last model is the one.
        protocol: Protocol = "honest" if row.labels == "pseudo" else plan.protocol
        if protocol == "paper":
            recipe = dataclasses.replace(recipe, validation=0.0)
        units.append(
            Unit(
                table=plan.table.name,
                row=row.label(plan.scale),
                recipe=recipe,
                scale=plan.scale,
                protocol=protocol,
                scored=row.scored,
                overrides=overrides,
                rate_from="recipe" if rate is None else "trials on validation classes",
            )
        )
    return units


def trial_tables(plan: Plan) -> tuple[str, ...]:
    """The tables whose trials decide the rates of a plan.

    Args:
        plan: what is asked for.
    """
    return tuple(dict.fromkeys((plan.table.name, _TUNING)))


def plan_trials(plan: Plan) -> list[Unit]:
    """One unit for each row and each of RATES; the test classes are never looked at.

    Args:
        plan: what is asked for; its sweep of learning_rate takes the place of RATES, to go on where
            the best rate of a row lies at their edge.
    """
    units = []
    sweeps = [sweep for sweep in plan.sweeps if not sweep.startswith(_RATE)]
    asked = [sweep.removeprefix(_RATE) for sweep in plan.sweeps if sweep.startswith(_RATE)]
    try:
        rates = [float(rate) for sweep in asked for rate in sweep.split(",")] or RATES[plan.scale]
    except ValueError:
        raise BadData(f"--set {_RATE}{','.join(asked)}: write numbers, such as 5e-5,1e-3") from None
    for row, overrides in itertools.product(table_rows(plan), combinations(sweeps)):
        units += [trial_unit(row, plan, (*overrides, f"{_RATE}{rate}"), _TRIAL) for rate in rates]
    return units


def trial_unit(row: Row, plan: Plan, overrides: tuple[str, ...], kind: str) -> Unit:
    """A unit that is judged on validation classes alone.

    Args:
        row: of the plan's table.
        plan: names the table and the scale.
        overrides: what is tried, as "key=value".
        kind: what the trial is for, as it stands in the record.
    """
    label = row.label(plan.scale)
    recipe = row_recipe(row, plan.scale, overrides, _TRIAL_SEED)
    if recipe.labels != "known" or not recipe.validation:
        raise BadData(f"{label}: without labels and held-out classes there is nothing to judge by")
    return Unit(
        table=plan.table.name,
        row=label,
        recipe=recipe,
        scale=plan.scale,
        scored=("validation",),
        overrides=overrides,
        rate_from=kind,
    )


def _rate_of(
    row: Row, plan: Plan, overrides: tuple[str, ...], scores: Mapping[Tried, _Scores]
) -> float | None:
    """The best rate of the first of the places where a row's rate can have been tried."""
    label, table = row.label(plan.scale), plan.table.name
    other = row.tuned_as or plan.table.tuned_as
    places = [(table, label, overrides), (table, label, ()), (table, _method(label), ())]
    if other is not None:
        borrowed = dataclasses.replace(row, method=other, dim=512).label(plan.scale)
        places += [(table, borrowed, ()), (_TUNING, borrowed, ())]
        places += [(_TUNING, _method(borrowed), ())]
    for place in places:
        if place in scores:
            missing = sorted(set(RATES[plan.scale]) - set(scores[place]))
            if missing:
                raise BadData(
                    f"{place[1]}: the trials with learning rates {missing} are not done; run "
                    f"cbml reproduce {place[0]} --trials for it to its end first"
                )
            return _best(scores[place])
    return None


def _tried(trials: Iterable[Record]) -> dict[Tried, _Scores]:
    """What each rate gave, for rows and for methods; a run that broke off counts as the worst.

    A method, which is a row without " +MVC" and " +mining", has for each rate the best of its rows.
    Trials of a row by that very name come before it.
    """
    rows: dict[Tried, _Scores] = {}
    for record in trials:
        if record["rate_from"] == _TRIAL:
            *others, rate = record["overrides"]
            score = (record["scores"].get("validation") or {}).get("recall@1", -1.0)
            place = rows.setdefault((record["table"], record["row"], tuple(others)), {})
            place[float(rate.partition("=")[2])] = -1.0 if record["failed"] else score
    methods: dict[Tried, _Scores] = {}
    for (table, row, changed), scores in rows.items():
        best = methods.setdefault((table, _method(row), changed), {})
        best.update({rate: max(score, best.get(rate, -1.0)) for rate, score in scores.items()})
    return methods | rows


def _method(row: str) -> str:
    return row.replace(" +MVC", "").replace(" +mining", "")


def _best(scores: Mapping[float, float]) -> float:
    return min(scores, key=lambda rate: (-scores[rate], rate))


def _fits(label: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(label, pattern) for pattern in patterns)
