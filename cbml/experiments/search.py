"""A search by Optuna over options of a row, judged on validation classes alone.

Optuna keeps its trials in a journal of its own beside the records: an interrupted search takes up
the trial that it had begun, and that run resumes.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cbml.errors import BadData, MissingExtra
from cbml.experiments.jobs import Job, Record, read_records, records_file, validation_score
from cbml.experiments.plans import Plan, check_setting, table_rows, trial_job
from cbml.experiments.rows import Row
from cbml.experiments.running import run_jobs
from cbml.experiments.sources import Sources
from cbml.regular import check_regular
from cbml.runs import plain_value
from cbml.training import Callback

# A range that spans this factor is searched by its logarithm.
_WIDE = 50.0
_KIND = "search"
_REPEATS = 50  # suggestions in a row that were tried before

Space = Mapping[str, Any]  # setting -> distribution of Optuna


def search_row(
    plan: Plan, space: Space, *, count: int, out: Path, sources: Sources, callback: Callback
) -> list[Record]:
    """The records of a search, the best in validation first; the test is never scored.

    Args:
        plan: A plan of exactly one row.
        space: The ranges that `parse_ranges` gives.
        count: Runs in all, those of earlier calls included.
        out: Folder of runs and records.
        sources: Places of images and weights.
        callback: Called at every step.
    """
    row, fixed = _only_row(plan)
    file = records_file(out, trial_job(row, plan, fixed, _KIND))
    study = _open_study(file, row.label(plan.scale), fixed, space)
    tried = {_text(trial.params): trial.params for trial in _trials(study, "COMPLETE")}
    repeats = 0
    while len(tried) < min(count, _combinations(space)) and repeats < _REPEATS:
        begun = _trials(study, "RUNNING")
        trial = begun[0] if begun else study.ask(dict(space))
        if _text(trial.params) in tried:
            study.tell(trial.number, state=_state("FAIL"))
            repeats += 1
            continue
        job = trial_job(row, plan, {**fixed, **trial.params}, _KIND)
        progress = run_jobs([job], out, sources=sources, callback=callback)
        if progress.refused:
            raise BadData("; ".join(progress.refused))
        if progress.elsewhere:
            raise BadData(f"{job.name}: another process searches here; let it finish")
        study.tell(trial.number, max(0.0, validation_score(_record(file, job))))
        tried[_text(trial.params)], repeats = trial.params, 0
    found = [
        _record(file, trial_job(row, plan, {**fixed, **params}, _KIND)) for params in tried.values()
    ]
    return sorted(found, key=validation_score, reverse=True)


def _only_row(plan: Plan) -> tuple[Row, dict[str, Any]]:
    """The one row of a plan and what is changed in it."""
    rows = table_rows(plan)
    if len(rows) != 1:
        labels = ", ".join(repr(row.label(plan.scale)) for row in rows)
        raise BadData(f"--search: choose one row with --only; these match: {labels}")
    fixed, *others = plan.settings()
    if others:
        raise BadData(f"--set {' '.join(plan.sweeps)}: give one value beside --search")
    return rows[0], fixed


def _open_study(file: Path, label: str, fixed: Mapping[str, Any], space: Space) -> Any:
    """The study of one row, its fixed settings and these ranges, in the journal of its table."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges = {key: optuna.distributions.distribution_to_json(one) for key, one in space.items()}
    identity = _text({"row": label, "fixed": dict(fixed), "ranges": ranges})
    file.parent.mkdir(parents=True, exist_ok=True)
    log = file.with_suffix(".optuna.log")
    check_regular(log)
    journal = JournalFileBackend(str(log))
    return optuna.create_study(
        storage=JournalStorage(journal),
        study_name=f"{label} {hashlib.sha256(identity.encode()).hexdigest()[:16]}",
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        load_if_exists=True,
    )


def _trials(study: Any, state: str) -> list[Any]:
    found: list[Any] = study.get_trials(deepcopy=False, states=(_state(state),))
    return found


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _combinations(space: Space) -> float:
    """How many different trials there can be."""
    return math.prod(
        len(one.choices) if hasattr(one, "choices") else math.inf for one in space.values()
    )


def parse_ranges(texts: Sequence[str]) -> Space:
    """The space of a search from the words of the command line.

    Args:
        texts: "key=low:high" for numbers, "key=a,b,c" for choices.
    """
    try:
        from optuna.distributions import CategoricalDistribution, FloatDistribution
    except ImportError:
        raise MissingExtra("optuna", "sweep") from None
    space: dict[str, Any] = {}
    for text in texts:
        key, _, values = text.partition("=")
        check_setting(key, f"--search {text}")
        low, colon, high = values.partition(":")
        try:
            if colon:
                first, last = float(low), float(high)
                wide = first > 0 and last / first >= _WIDE
                space[key] = FloatDistribution(first, last, log=wide)
            else:
                choices = [plain_value(value) for value in values.split(",")]
                if len(choices) < 2:
                    raise ValueError("give at least two values")
                space[key] = CategoricalDistribution(choices)
        except ValueError as error:
            raise BadData(f"--search {text}: write key=low:high or key=a,b ({error})") from None
    return space


def _record(file: Path, job: Job) -> Record:
    wanted = dict(job.overrides)
    return next(
        record
        for record in read_records(file)
        if record["learning_rate_from"] == _KIND
        and record["row"] == job.row
        and record["overrides"] == wanted
    )


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
