"""Sweeps, trials and what they choose."""

from typing import Any

import pytest

from cbml.errors import BadData
from cbml.experiments import Plan, plan_trials, plan_units
from cbml.experiments.figure_rows import GAP
from cbml.experiments.plans import RATES as ALL_RATES
from cbml.experiments.tables import TABLES
from cbml.experiments.units import run_name

RATES = ALL_RATES["laptop"]


def plan(**changes: Any) -> Plan:
    given = {"table": TABLES["loss-ablation"], "scale": "laptop", "data": "emoji"} | changes
    return Plan(**given)


def trial(
    row: str, rate: float, recall: float | None, *others: str, table: str = "loss-ablation"
) -> dict[str, Any]:
    return {
        "table": table,
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
    first, second = plan_units(plan(only=("MS",)), range(2), trials)
    assert first.recipe.settings.learning_rate == RATES[1], "the lower of equals"
    assert first.rate_from == "trials on validation classes"
    tried = [unit for unit in plan_trials(plan(only=("MS",))) if f"{RATES[1]}" in str(unit)]
    assert run_name(first) in {run_name(unit) for unit in tried}
    assert run_name(second) != run_name(first)
    (given,) = plan_units(plan(only=("MS",), sweeps=("learning_rate=1",)), range(1), trials)
    assert given.recipe.settings.learning_rate == 1.0


def test_a_row_with_half_of_its_trials_is_refused_and_others_are_not() -> None:
    whole = [trial("MS", rate, rate) for rate in RATES]
    half = [trial("MS +MVC", rate, rate) for rate in RATES[:3]]
    missing = r"the trials with learning rates \[0.0008\] are not done; run cbml reproduce loss-abl"
    with pytest.raises(BadData, match=missing):
        plan_units(plan(only=("MS +MVC",)), range(1), [*whole, *half])
    with pytest.raises(BadData, match=missing):
        plan_units(plan(only=("MS",)), range(1), half)
    units = plan_units(plan(only=("MS", "CBML")), range(1), [*whole, *half])
    assert [unit.recipe.settings.learning_rate for unit in units] == [RATES[-1], RATES[0]]
    assert [unit.rate_from for unit in units] == ["trials on validation classes", "recipe"]


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
    (chosen,) = plan_units(plan(only=("MS",)), range(1), trials)
    assert chosen.recipe.settings.learning_rate == 5e-5
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
    # The same name stands for the bare loss in the ablation and for the whole one elsewhere.
    trials += [trial("CBML", rate, 1 - rate) for rate in RATES]
    for name in ("lambda", "embedding-size", "cub-cars"):
        units = plan_units(plan(table=TABLES[name], only=("CBML*",)), range(1), trials)
        assert {unit.recipe.settings.learning_rate for unit in units} == {RATES[-1]}
    own = [trial("CBML", rate, rate == RATES[1], table="embedding-size") for rate in RATES]
    units = plan_units(plan(table=TABLES["embedding-size"]), range(1), [*trials, *own])
    rates = {unit.row: unit.recipe.settings.learning_rate for unit in units}
    assert (rates["CBML"], rates["CBML, 64-d"]) == (RATES[1], RATES[-1])


def test_trials_count_at_the_full_scale_too() -> None:
    rates = ALL_RATES["full"]
    assert 3e-5 in rates, "the rate of the authors' program"
    tried = plan_trials(plan(scale="full", data="cub", only=("*MS, CUB",)))
    assert [unit.recipe.settings.learning_rate for unit in tried] == list(rates)
    trials = [trial("ResNet-50 CBML +MVC +mining, CUB", rate, rate) for rate in rates]
    units = plan_units(plan(table=TABLES["lambda"], scale="full", data="cub"), range(1), trials)
    assert {unit.recipe.settings.learning_rate for unit in units} == {rates[-1]}
    (other,) = plan_units(
        plan(table=TABLES["cub-cars"], scale="full", data="cars", only=("GoogLeNet CBML, Cars",)),
        range(1),
        trials,
    )
    assert other.rate_from == "recipe", "trials of another network and other pictures"


def test_without_labels_there_is_one_protocol() -> None:
    first, second = (
        plan_units(plan(table=TABLES["pseudo"], protocol=protocol), range(1))[0]
        for protocol in ("honest", "paper")
    )
    assert second.protocol == "honest"
    assert run_name(first) == run_name(second)


def test_a_row_without_labels_takes_the_rate_of_its_method_with_labels() -> None:
    trials = [
        *(trial("CBML +MVC +mining", rate, rate) for rate in RATES),
        *(trial("ProxyNCA", rate, 1 - rate) for rate in RATES),
    ]
    rows = ("*without labels*",)
    units = plan_units(plan(table=GAP, only=rows), range(1), trials)
    found = {unit.row.split(" ")[0]: unit.recipe.settings.learning_rate for unit in units}
    assert (found["ProxyNCA"], found["CBML"]) == (RATES[0], RATES[-1])
    for name in ("pseudo", "pseudo-backbones", "pseudo-components", "pseudo-batch-size"):
        units = plan_units(plan(table=TABLES[name]), range(1), trials)
        assert {unit.recipe.settings.learning_rate for unit in units} == {RATES[-1]}


@pytest.mark.parametrize("name", ["imagenet", "pseudo-scratch"])
def test_random_weights_do_not_take_the_rate_of_pretrained_ones(name: str) -> None:
    trials = [trial(row, rate, rate) for rate in RATES for row in ("CBML +MVC +mining", "MS")]
    units = plan_units(plan(table=TABLES[name]), range(1), trials)
    assert {unit.rate_from for unit in units} == {"recipe"}
    assert {unit.recipe.settings.learning_rate for unit in units} == {1e-3}


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
    for wrong, message in (
        ("steps", "write key=value"),
        ("stepz=3", "did you mean 'steps'"),
        ("seed=5", "say it by --seeds"),
        ("data=cub", "say it by --data"),
        ("weights=path:resnet50.pt", "say it by --weights"),
        ("averaging=sqrt", "neither a setting nor an option of multi_similarity; leave rows"),
        ("variance_weigt=1", "did you mean 'variance_weight'"),
        ("variance_weight=1,much", "variance_weight must be a number"),
        ("loss=cbm", "did you mean 'cbml'"),
    ):
        with pytest.raises(BadData, match=message):
            plan_units(plan(only=("MS",), sweeps=(wrong,)), range(1))


@pytest.mark.parametrize("change", ["validation=0", "labels=none"])
def test_trials_need_something_to_judge_by(change: str) -> None:
    with pytest.raises(BadData, match="held-out classes there is nothing to judge by"):
        plan_trials(plan(only=("MS",), sweeps=(change,)))


def test_a_run_is_named_by_what_decides_it() -> None:
    first, second = plan_units(plan(only=("MS", "MS +MVC")), range(1))
    (again,) = plan_units(plan(only=("MS",), sweeps=("keep_checkpoints=1",)), range(1))
    (longer,) = plan_units(plan(only=("MS",), sweeps=("steps=301",)), range(1))
    (clipped,) = plan_units(plan(only=("MS",), sweeps=("clip_norm=1.0",)), range(1))
    (optimistic,) = plan_units(plan(only=("MS",), protocol="paper"), range(1))
    assert run_name(first) == run_name(again), "how many checkpoints stay changes nothing"
    (partial,) = plan_units(plan(only=("MS",), sweeps=("allow_partial=true",)), range(1))
    names = {run_name(unit) for unit in (first, second, longer, clipped, optimistic, partial)}
    assert len(names) == 6
