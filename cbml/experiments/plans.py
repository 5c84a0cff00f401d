"""Which units a table asks for: its rows at a scale, seeds, trials of the learning rate, sweeps."""

import dataclasses
import fnmatch
import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cbml.errors import BadData
from cbml.experiments.records import Record
from cbml.experiments.rows import Row, Table
from cbml.experiments.scales import base_recipe, pseudo_changes
from cbml.experiments.units import Protocol, Scale, Unit
from cbml.losses import LOSSES
from cbml.training import Recipe, Settings, with_overrides

__all__ = [
    "RATES",
    "TRIAL_SEED",
    "Plan",
    "chosen_rates",
    "plan_trials",
    "plan_units",
    "row_recipe",
    "table_rows",
]

# Every method gets the same rates to choose from, so that none is tuned more than another.
RATES = (1e-4, 2e-4, 4e-4, 8e-4)
TRIAL_SEED = 0
_TRIAL = "trial"
_RATE = "learning_rate="
# A row and what was changed in it beside the learning rate.
Tried = tuple[str, tuple[str, ...]]
# A row and the rates that it has yet to try.
_Lack = tuple[str, list[float]]
_CONSTRAINT = ("variance_weight", "target_mix", "variance_reduction")


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

    At the laptop scale rows that differ in the paper's backbone alone are one row, and a set that
    the paper does not have takes the rows of CUB, or of the first set of the table.

    Args:
        plan: what is asked for.
    """
    rows = [row for row in plan.table.rows if plan.data in (None, row.data)]
    if plan.scale == "laptop":
        data = plan.data or "emoji"
        sets = {row.data: None for row in plan.table.rows}
        like = data if data in sets else "cub" if "cub" in sets else next(iter(sets))
        found = [row for row in plan.table.rows if row.data == like]
        by_label = {row.label("laptop"): row for row in reversed(found)}
        rows = [dataclasses.replace(row, data=data) for row in reversed(by_label.values())]
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
    recipe = with_overrides(recipe, (f"dim={row.dim}", f"seed={seed}"))
    return with_overrides(recipe, [_full_key(recipe, override) for override in overrides])


def plan_units(plan: Plan, seeds: Sequence[int], trials: Iterable[Record] = ()) -> list[Unit]:
    """The units of a plan, seed by seed, so that a part of the work is a whole table.

    Args:
        plan: what is asked for.
        seeds: of the runs.
        trials: records that decide the learning rate of each row that has some; a row without
            takes that of the same method with other parts on or off.
    """
    trials = list(trials)
    rates, unfinished = chosen_rates(trials), _unfinished(trials)
    units = []
    for seed, row, overrides in itertools.product(seeds, table_rows(plan), _grid(plan.sweeps)):
        label = row.label(plan.scale)
        places: list[Tried] = [(label, overrides), (label, ()), (_method(label), ())]
        places.append((row.tuned_as or plan.table.tuned_as or "", ()))
        given = any(override.startswith(_RATE) for override in overrides)
        rate = None if given else _first_rate(places, rates, unfinished)
        chosen = () if rate is None else (f"{_RATE}{rate}",)
        recipe = row_recipe(row, plan.scale, (*chosen, *overrides), seed)
        if plan.protocol == "paper":
            recipe = dataclasses.replace(recipe, validation=0.0)
        units.append(
            Unit(
                table=plan.table.name,
                row=label,
                recipe=recipe,
                scale=plan.scale,
                protocol=plan.protocol,
                scored=row.scored,
                overrides=overrides,
                rate_from="recipe" if rate is None else "trials on validation classes",
            )
        )
    return units


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
        rates = [float(rate) for sweep in asked for rate in sweep.split(",")] or RATES
    except ValueError:
        raise BadData(f"--set {_RATE}{','.join(asked)}: write numbers, such as 5e-5,1e-3") from None
    for row, overrides in itertools.product(table_rows(plan), _grid(sweeps)):
        if row.labels == "pseudo":
            raise BadData(f"{row.label(plan.scale)}: without labels there is nothing to try on")
        for rate in rates:
            tried = (*overrides, f"{_RATE}{rate}")
            units.append(
                Unit(
                    table=plan.table.name,
                    row=row.label(plan.scale),
                    recipe=row_recipe(row, plan.scale, tried, TRIAL_SEED),
                    scale=plan.scale,
                    scored=("validation",),
                    overrides=tried,
                    rate_from=_TRIAL,
                )
            )
    return units


def chosen_rates(trials: Iterable[Record]) -> dict[Tried, float]:
    """The learning rate with the best validation Recall@1 of each row; the lower one of equals.

    A method, which is a row without " +MVC" and " +mining", has the best of its rows' rates. A row
    with trials still to come has none, and its method neither.

    Args:
        trials: records of trials.
    """
    trials = list(trials)
    unfinished = _unfinished(trials)
    tried = _tried(trials)
    methods: dict[Tried, dict[float, float]] = {}
    for (row, others), scores in tried.items():
        best = methods.setdefault((_method(row), others), {})
        best.update({rate: max(score, best.get(rate, -1.0)) for rate, score in scores.items()})
    found = methods | tried
    return {place: _best(scores) for place, scores in found.items() if place not in unfinished}


def _first_rate(
    places: Iterable[Tried], rates: Mapping[Tried, float], unfinished: Mapping[Tried, _Lack]
) -> float | None:
    for place in places:
        if place in unfinished:
            row, missing = unfinished[place]
            raise BadData(
                f"{row}: the trials with learning rates {missing} are not done; run the same "
                "command with --trials to its end first"
            )
        if place in rates:
            return rates[place]
    return None


def _tried(trials: Iterable[Record]) -> dict[Tried, dict[float, float]]:
    """What each rate gave; a run that broke off counts as the worst."""
    tried: dict[Tried, dict[float, float]] = {}
    for record in trials:
        if record["rate_from"] == _TRIAL:
            *others, rate = record["overrides"]
            score = (record["scores"].get("validation") or {}).get("recall@1", -1.0)
            place = tried.setdefault((record["row"], tuple(others)), {})
            place[float(rate.partition("=")[2])] = -1.0 if record["failed"] else score
    return tried


def _unfinished(trials: Iterable[Record]) -> dict[Tried, _Lack]:
    """Rows, and their methods, that have some of RATES but not all."""
    found: dict[Tried, _Lack] = {}
    for (row, others), scores in _tried(trials).items():
        missing = sorted(set(RATES) - set(scores))
        if missing:
            found[row, others] = found[_method(row), others] = (row, missing)
    return found


def _method(row: str) -> str:
    return row.replace(" +MVC", "").replace(" +mining", "")


def _best(scores: Mapping[float, float]) -> float:
    return min(scores, key=lambda rate: (-scores[rate], rate))


def _fits(label: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(label, pattern) for pattern in patterns)


def _grid(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    choices = []
    for sweep in sweeps:
        key, equals, values = sweep.partition("=")
        if not equals or not values:
            raise BadData(f"--set {sweep}: write key=value or key=value,value")
        choices.append([f"{key}={value}" for value in values.split(",")])
    return list(itertools.product(*choices))


def _full_key(recipe: Recipe, override: str) -> str:
    """An option of the row's loss under its full name."""
    key = override.partition("=")[0]
    fields = {field.name for kind in (Recipe, Settings) for field in dataclasses.fields(kind)}
    options = {*inspect.signature(LOSSES[recipe.loss]).parameters, *_CONSTRAINT}
    is_option = key not in fields and (key in options or key.startswith("ratio."))
    return f"loss.{override}" if is_option else override
