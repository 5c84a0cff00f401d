"""Jobs to records: leased, run or resumed, scored, and never repeated."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cbml.errors import BadData, DamagedFile, FolderInUse
from cbml.experiments.jobs import (
    Job,
    add_records,
    build_record,
    package_versions,
    read_records,
    records_file,
    run_name,
)
from cbml.experiments.sources import Sources
from cbml.files import locked, write_json
from cbml.regular import read_text
from cbml.runs import (
    load_refinement,
    load_splits,
    note_test_evaluation,
    score_split,
    trained_model,
    use_backbone,
)
from cbml.training import Callback, NonFiniteError, read_metrics

# Every K of the paper's tables.
_RECALL_AT = (1, 2, 4, 8, 10, 20, 30, 100, 1000)

Outcome = Literal["finished", "done", "failed", "elsewhere"]


@dataclass
class JobCounts:
    """How many jobs were run, and which could not be.

    Args:
        finished: Jobs that were done before.
        done: Jobs done in this call.
        failed: Jobs done now whose numbers became non-finite.
        elsewhere: Jobs that another process works on.
        refused: What is missing or wrong -> the names of the jobs that wait for it.
    """

    finished: int = 0
    done: int = 0
    failed: int = 0
    elsewhere: int = 0
    refused: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: "JobCounts") -> None:
        """Add what became of further jobs.

        Args:
            other: Counts of those jobs.
        """
        for word in ("finished", "done", "failed", "elsewhere"):
            setattr(self, word, getattr(self, word) + getattr(other, word))
        for reason, names in other.refused.items():
            self.refused.setdefault(reason, []).extend(names)

    def refuse(self, missing: Mapping[str, Sequence[Job]]) -> None:
        """Add jobs that cannot be run.

        Args:
            missing: What is missing -> the jobs that wait for it.
        """
        for line, jobs in missing.items():
            self.refused.setdefault(line, []).extend(job.name for job in jobs)


@contextlib.contextmanager
def lease(folder: Path) -> Iterator[bool]:
    """Hold the folder of a run inside the block; False where another process holds it.

    The lock is one of the operating system (see `locked`): it ends with its process, so that
    others take over at once from one that was killed.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, wait=0, name=".lease"))
        except FolderInUse:
            yield False
        else:
            yield True


def run_jobs(jobs: Sequence[Job], out: Path, *, sources: Sources, callback: Callback) -> JobCounts:
    """Run the jobs that are not finished, and write the records of all that are.

    Several processes, also of several machines, may do this with one folder: each takes what
    nobody else holds. Interrupted, the same call resumes where it stopped. A job with a record is
    done, whether the folder of its run is still there or not. Images and weights are
    looked for first; a job whose images or weights are missing, unreachable or damaged does not
    keep others from being run.

    Args:
        jobs: The jobs to run.
        out: Folder of runs and records.
        sources: Places of images and weights.
        callback: Called at every step.
    """
    counts = JobCounts()
    if not sources.exist():  # without its file of weights no job has a name
        counts.refuse(sources.missing(jobs))
        return counts
    jobs = sources.named(jobs)
    open_jobs = [job for job in jobs if not _is_recorded(job, out)]
    counts.finished, jobs = len(jobs) - len(open_jobs), open_jobs
    folders = [out / "runs" / run_name(job) for job in jobs]
    unfinished = [
        job
        for job, folder in zip(jobs, folders, strict=True)
        if finished_scores(job, folder) is None
    ]
    missing = sources.missing(unfinished)
    counts.refuse(missing)
    waiting = {run_name(job) for refused in missing.values() for job in refused}
    if any(run_name(job) not in waiting for job in unfinished):
        for line in missing:  # before hours of the others; without any, the end follows at once
            callback.on_message(line)
    for number, (job, folder) in enumerate(zip(jobs, folders, strict=True), start=1):
        if folder.name in waiting:
            continue
        title = f"[{number} of {len(jobs)}] {job.name}"
        try:
            outcome = _do(job, folder, title, sources, callback)
        except (BadData, DamagedFile, ConnectionError) as error:
            callback.end()
            counts.refused.setdefault(str(error), []).append(job.name)
            continue
        setattr(counts, outcome, getattr(counts, outcome) + 1)
        scores = finished_scores(job, folder)
        if scores is not None:
            add_records(records_file(out, job), [build_record(job, folder, scores)])
            callback.on_message(f"{title}: {outcome}, {_headline(scores)}")
    return counts


def _do(job: Job, folder: Path, title: str, sources: Sources, callback: Callback) -> Outcome:
    """Run a job unless it is finished or another process holds it."""
    if finished_scores(job, folder) is not None:
        return "finished"
    with lease(folder) as held:
        if not held:
            return "elsewhere"
        if finished_scores(job, folder) is not None:  # another process finished it just now
            return "finished"
        callback.on_message(title)
        return _run(job, folder, sources, callback)


def _is_recorded(job: Job, out: Path) -> bool:
    """Whether only the record of a job is left, such as one that came from another machine."""
    if (out / "runs" / run_name(job)).exists():
        return False
    return any(
        record["run"] == run_name(job)
        and (record["failed"] or set(job.scored) <= set(record["scores"]))
        for record in read_records(records_file(out, job))
    )


def finished_scores(job: Job, folder: Path) -> dict[str, Any] | None:
    """The scores of a job's run if all that the job asks for are there."""
    try:
        scores = json.loads(read_text(folder / "scores.json"))
    except FileNotFoundError:
        return None
    done = "failed" in scores or all(split in scores for split in job.scored)
    return dict(scores) if done else None


def _run(job: Job, folder: Path, sources: Sources, callback: Callback) -> Outcome:
    config = sources.local(job.config)
    use_backbone(config.model.backbone)  # jobs are planned from the command line
    try:
        model = trained_model(config, folder, callback)
    except NonFiniteError as error:  # a learning rate too high is a result as well
        callback.end()
        broken = {"failed": str(error), "packages": package_versions()}
        write_json(folder / "scores.json", broken)
        return "failed"
    splits = load_splits(config)
    refiner = load_refinement(folder, config.method.name)
    known = {"packages": package_versions()} | _known_scores(folder)
    scores: dict[str, Any] = known | {"validation": _best_validation(folder)}
    # A run without labels has chosen no model by held-out classes, but rates are chosen by them.
    wanted = [split for split in job.scored if split != "validation" or len(splits.validation)]
    for split in wanted:
        if scores.get(split) is None:
            callback.on_message(f"scoring {split} images")
            found = score_split(model, splits, split, recall_at=_RECALL_AT, refiner=refiner)
            scores[split] = found.metrics
            if split == "test":
                note_test_evaluation(folder, found)
    write_json(folder / "scores.json", scores)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # only the model is still needed
    return "done"


def _known_scores(folder: Path) -> dict[str, Any]:
    path = folder / "scores.json"
    return dict(json.loads(read_text(path))) if path.exists() else {}


def _best_validation(folder: Path) -> dict[str, float] | None:
    """The scores of the model that held-out classes chose, if any did."""
    best = [line for line in read_metrics(folder) if line.get("best")]
    return dict(best[-1]["validation"]) if best and "recall@1" in best[-1]["validation"] else None


def _headline(scores: dict[str, Any]) -> str:
    if "failed" in scores:
        return str(scores["failed"])
    parts = [
        f"{split} recall@1 {scores[split]['recall@1']:.4f}"
        for split in ("train", "validation", "test")
        if scores.get(split)
    ]
    return ", ".join(parts)
