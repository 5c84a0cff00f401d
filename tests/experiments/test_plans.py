"""Sweeps, trials and what they choose."""

from typing import Any

import pytest

from cbml.errors import BadData
from cbml.experiments import Plan, plan_trials, plan_units
from cbml.experiments.figure_rows import GAP
from cbml.experiments.plans import RATES, chosen_rates
from cbml.experiments.tables import TABLES
from cbml.experiments.units import run_name


def plan(**changes: Any) -> Plan:
    given = {"table": TABLES["loss-ablation"], "scale": "laptop", "data": "emoji"} | changes
    return Plan(**given)


def trial(row: str, rate: float, recall: float | None, *others: str) -> dict[str, Any]:
    return {
        "row": row,
        "trial": True,
        "rate_from": "trial",
        "overrides": [*others, f"learning_rate={rate}"],
        "scores": {"validation": {"recall@1": recall}},
        "failed": "NaN" if recall is None else None,
    }


def test_each_row_gets_equally_many_trials_and_none_sees_the_test() -> None:
    units = plan_trials(plan())
    by_row: dict[str, set[float]] = {}
    for unit in units:
        assert unit.trial
        by_row.setdefault(unit.row, set()).add(unit.recipe.settings.learning_rate)
    assert len(by_row) == 16
    assert all(rates == set(RATES) for rates in by_row.values())
    assert {unit.recipe.seed for unit in units} == {0}


def test_trials_choose_the_rate_and_their_run_is_the_final_one() -> None:
    scores = dict(zip(RATES, [0.5, 0.7, 0.7, None], strict=True))
    trials = [trial("MS", rate, score) for rate, score in scores.items()]
    assert chosen_rates(trials) == {("MS", ()): RATES[1]}, "the lower of equals"
    first, second = plan_units(plan(only=("MS",)), range(2), trials)
    assert first.recipe.settings.learning_rate == RATES[1]
    assert first.rate_from == "trials on validation classes"
    tried = [unit for unit in plan_trials(plan(only=("MS",))) if f"{RATES[1]}" in str(unit)]
    assert run_name(first) in {run_name(unit) for unit in tried}
    assert run_name(second) != run_name(first)
    (given,) = plan_units(plan(only=("MS",), sweeps=("learning_rate=1",)), range(1), trials)
    assert given.recipe.settings.learning_rate == 1.0
    with pytest.raises(
        BadData, match=r"MS: the trials with learning rates \[0.0008\] are not done"
    ):
        plan_units(plan(only=("MS +MVC",)), range(1), trials[:3])
    (other,) = plan_units(plan(only=("CBML",)), range(1), trials[:3])
    assert other.rate_from == "recipe", "trials of another row may still be on their way"


def test_trials_of_a_changed_row_come_before_those_of_the_row() -> None:
    longer = [trial("MS", rate, rate, "steps=600") for rate in RATES]
    shorter = [trial("MS", rate, 1 - rate) for rate in RATES]
    sweeps = plan(only=("MS",), sweeps=("steps=600,900",))
    found = plan_units(sweeps, range(1), [*longer, *shorter])
    rates = {unit.recipe.settings.steps: unit.recipe.settings.learning_rate for unit in found}
    assert rates == {600: RATES[-1], 900: RATES[0]}


def test_further_rates_can_be_tried_and_win() -> None:
    units = plan_trials(plan(only=("MS",), sweeps=("learning_rate=5e-5,1.6e-3", "steps=9")))
    assert [unit.recipe.settings.learning_rate for unit in units] == [5e-5, 1.6e-3]
    assert units[0].overrides == ("steps=9", "learning_rate=5e-05")
    trials = [trial("MS", rate, 1 - rate) for rate in (*RATES, 5e-5)]
    assert chosen_rates(trials) == {("MS", ()): 5e-5}
    with pytest.raises(BadData, match="--set learning_rate=fast: write numbers"):
        plan_trials(plan(sweeps=("learning_rate=fast",)))


def test_rows_without_trials_take_the_best_rate_of_their_method() -> None:
    trials = [
        *(
            trial("CBML +MVC (from data)", rate, score)
            for rate, score in zip(RATES, (1, 5, 2, 0), strict=True)
        ),
        *(trial("CBML +MVC +mining (from data)", rate, rate) for rate in RATES),
        *(trial("CBML +MVC", rate, rate) for rate in RATES),
    ]
    rows = ("CBML (from data)", "CBML +MVC (from data)", "CBML +MVC +mining*", "CBML", "MS")
    units = plan_units(plan(only=rows), range(1), trials)
    found = {unit.row: unit.recipe.settings.learning_rate for unit in units}
    sources = {unit.row: unit.rate_from for unit in units}
    assert found["CBML (from data)"] == found["CBML +MVC (from data)"] == RATES[1]
    assert found["CBML +MVC +mining (from data)"] == RATES[-1], "its own trials come first"
    assert found["CBML"] == found["CBML +MVC +mining"] == RATES[-1]
    assert sources["CBML"] == "trials on validation classes"
    assert sources["MS"] == "recipe"


def test_a_study_takes_the_rate_of_the_row_that_it_is_about() -> None:
    trials = [trial("CBML +MVC +mining", rate, rate) for rate in RATES]
    units = plan_units(plan(table=TABLES["lambda"]), range(1), trials)
    assert {unit.recipe.settings.learning_rate for unit in units} == {RATES[-1]}


def test_a_row_without_labels_takes_the_rate_of_its_method_with_labels() -> None:
    trials = [
        *(trial("CBML +MVC +mining", rate, rate) for rate in RATES),
        *(trial("ProxyNCA", rate, 1 - rate) for rate in RATES),
    ]
    rows = ("*without labels*",)
    units = plan_units(plan(table=GAP, only=rows), range(1), trials)
    found = {unit.row.split(" ")[0]: unit.recipe.settings.learning_rate for unit in units}
    assert (found["ProxyNCA"], found["CBML"]) == (RATES[0], RATES[-1])


def test_sweeps_are_all_combinations_and_know_options_of_the_loss() -> None:
    sweeps = ("variance_weight=0.0,2", "target_mix=0.5", "steps=7")
    units = plan_units(plan(only=("CBML +MVC",), sweeps=sweeps), range(1))
    assert [unit.overrides for unit in units] == [
        ("variance_weight=0.0", "target_mix=0.5", "steps=7"),
        ("variance_weight=2", "target_mix=0.5", "steps=7"),
    ]
    options = [unit.recipe.loss_options for unit in units]
    assert [one["variance_weight"] for one in options] == [0.0, 2]
    assert {one["target_mix"] for one in options} == {0.5}
    for wrong, message in (("steps", "write key=value"), ("stepz=3", "did you mean 'steps'")):
        with pytest.raises(BadData, match=message):
            plan_units(plan(only=("MS",), sweeps=(wrong,)), range(1))


def test_a_run_is_named_by_what_decides_it() -> None:
    first, second = plan_units(plan(only=("MS", "MS +MVC")), range(1))
    (again,) = plan_units(plan(only=("MS",), sweeps=("keep_checkpoints=1",)), range(1))
    (longer,) = plan_units(plan(only=("MS",), sweeps=("steps=301",)), range(1))
    (clipped,) = plan_units(plan(only=("MS",), sweeps=("clip_norm=1.0",)), range(1))
    (optimistic,) = plan_units(plan(only=("MS",), protocol="paper"), range(1))
    assert run_name(first) == run_name(again), "how many checkpoints stay changes nothing"
    names = {run_name(unit) for unit in (first, second, longer, clipped, optimistic)}
    assert len(names) == 5
