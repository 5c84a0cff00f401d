"""Sweeps, trials and what they choose."""

from typing import Any

import pytest

from cbml.errors import BadData
from cbml.experiments import FIGURE_TABLES, TABLES, Plan, parse_sweeps, plan_jobs, plan_trials
from cbml.experiments.jobs import run_name
from cbml.experiments.plans import LEARNING_RATES as ALL_RATES

RATES = ALL_RATES["laptop"]


def plan(**changes: Any) -> Plan:
    given = {"table": TABLES["loss-ablation"], "scale": "laptop", "data": "emoji"} | changes
    return Plan(**given)


def trial(
    row: str, rate: float, recall: float | None, table: str = "loss-ablation", **others: Any
) -> dict[str, Any]:
    return {
        "table": table,
        "row": row,
        "trial": True,
        "learning_rate_from": "trial",
        "overrides": others | {"learning_rate": rate},
        "scores": {"validation": {"recall@1": recall}},
        "failed": "NaN" if recall is None else None,
    }


def test_each_row_gets_equally_many_trials_and_none_sees_the_test() -> None:
    jobs = plan_trials(plan())
    by_row: dict[str, set[float]] = {}
    for job in jobs:
        assert job.trial
        by_row.setdefault(job.row, set()).add(job.config.settings.learning_rate)
    assert len(by_row) == 16
    assert all(rates == set(RATES) for rates in by_row.values())
    assert {job.config.training.seed for job in jobs} == {0}


def test_trials_choose_the_rate_and_their_run_is_the_final_one() -> None:
    scores = dict(zip(RATES, [0.5, 0.7, 0.7, None], strict=True))
    trials = [trial("MS", rate, score) for rate, score in scores.items()]
    first, second = plan_jobs(plan(only=("MS",)), range(2), trials)
    assert first.config.settings.learning_rate == RATES[1], "the lower of equals"
    assert first.learning_rate_from == "trials on validation classes"
    tried = [job for job in plan_trials(plan(only=("MS",))) if f"{RATES[1]}" in str(job)]
    assert run_name(first) in {run_name(job) for job in tried}
    assert run_name(second) != run_name(first)
    (given,) = plan_jobs(plan(only=("MS",), sweeps={"learning_rate": [1.0]}), range(1), trials)
    assert given.config.settings.learning_rate == 1.0


def test_a_row_with_half_of_its_trials_is_refused_and_others_are_not() -> None:
    whole = [trial("MS", rate, rate) for rate in RATES]
    half = [trial("MS +MVC", rate, rate) for rate in RATES[:3]]
    missing = r"the trials with learning rates \[0.0008\] are not done; run cbml reproduce loss-abl"
    with pytest.raises(BadData, match=missing):
        plan_jobs(plan(only=("MS +MVC",)), range(1), [*whole, *half])
    with pytest.raises(BadData, match=missing):
        plan_jobs(plan(only=("MS",)), range(1), half)
    jobs = plan_jobs(plan(only=("MS", "CBML")), range(1), [*whole, *half])
    assert [job.config.settings.learning_rate for job in jobs] == [RATES[-1], RATES[0]]
    assert [job.learning_rate_from for job in jobs] == ["trials on validation classes", "config"]


def test_trials_of_a_changed_row_come_before_those_of_the_row() -> None:
    longer = [trial("MS", rate, rate, steps=600) for rate in RATES]
    shorter = [trial("MS", rate, 1 - rate) for rate in RATES]
    sweeps = plan(only=("MS",), sweeps={"steps": [600, 900]})
    found = plan_jobs(sweeps, range(1), [*longer, *shorter])
    rates = {job.config.settings.steps: job.config.settings.learning_rate for job in found}
    assert rates == {600: RATES[-1], 900: RATES[0]}


def test_further_rates_can_be_tried_and_win() -> None:
    jobs = plan_trials(
        plan(only=("MS",), sweeps=parse_sweeps(["learning_rate=5e-5,1.6e-3", "steps=9"]))
    )
    assert [job.config.settings.learning_rate for job in jobs] == [5e-5, 1.6e-3]
    assert jobs[0].overrides == {"steps": 9, "learning_rate": 5e-5}
    trials = [trial("MS", rate, 1 - rate) for rate in (*RATES, 5e-5)]
    (chosen,) = plan_jobs(plan(only=("MS",)), range(1), trials)
    assert chosen.config.settings.learning_rate == 5e-5
    with pytest.raises(BadData, match="--set learning_rate=fast: learning_rate must be float"):
        parse_sweeps(["learning_rate=fast"])


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
    jobs = plan_jobs(plan(only=rows), range(1), trials)
    found = {job.row: job.config.settings.learning_rate for job in jobs}
    sources = {job.row: job.learning_rate_from for job in jobs}
    assert found["CBML (from data)"] == found["CBML +MVC (from data)"] == RATES[1]
    assert found["CBML +MVC +mining (from data)"] == RATES[-1], "its own trials come first"
    assert found["CBML"] == found["CBML +MVC +mining"] == RATES[-1]
    assert sources["CBML"] == "trials on validation classes"
    assert sources["MS"] == "config"


def test_a_study_takes_the_rate_of_the_row_that_it_is_about() -> None:
    trials = [trial("CBML +MVC +mining", rate, rate) for rate in RATES]
    # The same name stands for the bare loss in the ablation and for the whole one elsewhere.
    trials += [trial("CBML", rate, 1 - rate) for rate in RATES]
    for name in ("lambda", "embedding-size", "cub-cars"):
        jobs = plan_jobs(plan(table=TABLES[name], only=("CBML*",)), range(1), trials)
        assert {job.config.settings.learning_rate for job in jobs} == {RATES[-1]}
    own = [trial("CBML", rate, rate == RATES[1], table="embedding-size") for rate in RATES]
    jobs = plan_jobs(plan(table=TABLES["embedding-size"]), range(1), [*trials, *own])
    rates = {job.row: job.config.settings.learning_rate for job in jobs}
    assert (rates["CBML"], rates["CBML, 64-d"]) == (RATES[1], RATES[-1])


def test_trials_count_at_the_full_scale_too() -> None:
    rates = ALL_RATES["full"]
    assert 3e-5 in rates, "the rate of the authors' program"
    tried = plan_trials(plan(scale="full", data="cub", only=("*MS, CUB",)))
    assert [job.config.settings.learning_rate for job in tried] == list(rates)
    trials = [trial("ResNet-50 CBML +MVC +mining, CUB", rate, rate) for rate in rates]
    jobs = plan_jobs(plan(table=TABLES["lambda"], scale="full", data="cub"), range(1), trials)
    assert {job.config.settings.learning_rate for job in jobs} == {rates[-1]}
    (other,) = plan_jobs(
        plan(table=TABLES["cub-cars"], scale="full", data="cars", only=("GoogLeNet CBML, Cars",)),
        range(1),
        trials,
    )
    assert other.learning_rate_from == "config", "trials of another network and other images"


def test_without_labels_no_model_is_chosen() -> None:
    first, second = (
        plan_jobs(plan(table=TABLES["pseudo"], model_selection=selection), range(1))[0]
        for selection in ("validation", "test")
    )
    assert not second.optimistic
    assert run_name(first) == run_name(second)


def test_a_row_without_labels_takes_the_rate_of_its_method_with_labels() -> None:
    trials = [
        *(trial("CBML +MVC +mining", rate, rate) for rate in RATES),
        *(trial("ProxyNCA", rate, 1 - rate) for rate in RATES),
    ]
    rows = ("*without labels*",)
    jobs = plan_jobs(plan(table=FIGURE_TABLES["figure-gap"], only=rows), range(1), trials)
    found = {job.row.split(" ")[0]: job.config.settings.learning_rate for job in jobs}
    assert (found["ProxyNCA"], found["CBML"]) == (RATES[0], RATES[-1])
    for name in ("pseudo", "pseudo-backbones", "pseudo-components", "pseudo-batch-size"):
        jobs = plan_jobs(plan(table=TABLES[name]), range(1), trials)
        assert {job.config.settings.learning_rate for job in jobs} == {RATES[-1]}


@pytest.mark.parametrize("name", ["imagenet", "pseudo-scratch"])
def test_random_weights_do_not_take_the_rate_of_pretrained_ones(name: str) -> None:
    trials = [trial(row, rate, rate) for rate in RATES for row in ("CBML +MVC +mining", "MS")]
    jobs = plan_jobs(plan(table=TABLES[name]), range(1), trials)
    assert {job.learning_rate_from for job in jobs} == {"config"}
    # Systems of other authors that train by SGD have a rate of their own.
    by_adam = [job.config.settings for job in jobs if job.config.settings.optimizer == "adam"]
    assert {settings.learning_rate for settings in by_adam} == {1e-3}


def test_sweeps_are_all_combinations_and_know_options_of_the_loss() -> None:
    sweeps = parse_sweeps(["variance_weight=0.0,2", "target_mix=0.5", "steps=7"])
    jobs = plan_jobs(plan(only=("CBML +MVC",), sweeps=sweeps), range(1))
    assert [job.overrides for job in jobs] == [
        {"variance_weight": 0.0, "target_mix": 0.5, "steps": 7},
        {"variance_weight": 2, "target_mix": 0.5, "steps": 7},
    ]
    options = [job.config.loss.options for job in jobs]
    assert [one["variance_weight"] for one in options] == [0.0, 2]
    assert {one["target_mix"] for one in options} == {0.5}
    for wrong, message in (
        ("steps", "write key=value"),
        ("stepz=3", "did you mean 'steps'"),
        ("seed=5", "use --seeds"),
        ("data=cub", "use --data"),
        ("weights=path:resnet50.pt", "use --weights"),
        ("averaging=sqrt", "neither a setting nor an option of multi_similarity; leave rows"),
        ("variance_weigt=1", "did you mean 'variance_weight'"),
        ("variance_weight=1,much", "variance_weight must be a number"),
        ("loss=cbm", "did you mean 'cbml'"),
    ):
        with pytest.raises(BadData, match=message):
            plan_jobs(plan(only=("MS",), sweeps=parse_sweeps([wrong])), range(1))


@pytest.mark.parametrize("change", ["validation=0", "labels=none"])
def test_trials_need_something_to_judge_by(change: str) -> None:
    with pytest.raises(BadData, match="held-out classes there is nothing to score trials with"):
        plan_trials(plan(only=("MS",), sweeps=parse_sweeps([change])))


def test_a_run_is_named_by_what_decides_it() -> None:
    first, second = plan_jobs(plan(only=("MS", "MS +MVC")), range(1))
    (again,) = plan_jobs(plan(only=("MS",), sweeps={"keep_checkpoints": [1]}), range(1))
    (longer,) = plan_jobs(plan(only=("MS",), sweeps={"steps": [301]}), range(1))
    (clipped,) = plan_jobs(plan(only=("MS",), sweeps={"clip_norm": [1.0]}), range(1))
    (optimistic,) = plan_jobs(plan(only=("MS",), model_selection="test"), range(1))
    assert run_name(first) == run_name(again), "how many checkpoints stay changes nothing"
    (partial,) = plan_jobs(plan(only=("MS",), sweeps={"allow_partial": [True]}), range(1))
    names = {run_name(job) for job in (first, second, longer, clipped, optimistic, partial)}
    assert len(names) == 6


def test_a_row_s_name_fits_at_every_scale() -> None:
    for scale, data in (("laptop", "emoji"), ("full", "cub")):
        jobs = plan_jobs(plan(scale=scale, data=data, only=("CBML",)), range(1))
        assert [job.config.loss.name for job in jobs] == ["cbml"], scale
    both = plan(table=TABLES["cub-cars"], scale="full", data=None, only=("CBML",))
    assert {job.config.data.source for job in plan_jobs(both, range(1))} == {"cub", "cars"}
