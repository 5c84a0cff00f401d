"""A job is a row of a table with one seed; what is kept of it is a record, one line of JSON."""

import hashlib
import importlib.metadata
import itertools
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cbml.errors import DamagedFile
from cbml.experiments.rows import PAPER_RECIPE, Scale
from cbml.files import locked, replaced_file
from cbml.regular import read_file
from cbml.runs import FLAT_KEYS, RunConfig, with_current_names
from cbml.training import read_metrics, read_record

Record = dict[str, Any]

# What names a run. Other fields of the config count where they are not at their default,
# so that a field that joins them later does not make a finished run an unknown one.
_NAMING = (
    *("data", "backbone", "dim", "pooling", "batch_norm", "weights", "crop", "classes_per_batch"),
    *("samples_per_class", "loss", "loss_options", "validation", "seed", "steps", "epochs"),
    *("optimizer", "learning_rate", "weight_decay", "backbone_factor", "head_factor"),
    *("loss_factor", "schedule", "drop_at", "drop_factor", "warmup_steps", "clip_norm"),
    *("validate_every", "patience", "choose_by"),
)
# How a run is read, kept and shown does not change what is learned.
_LOCAL = (
    "workers",
    "bad_limit",
    "tensorboard",
    "checkpoint_every",
    "keep_checkpoints",
    "chunk_size",
)
_KEYS = FLAT_KEYS | {"loss_options": ("loss", "options"), "method_options": ("method", "options")}
_PLAIN = RunConfig("", loss={"parameters": "given"}).replace(**PAPER_RECIPE)

_PACKAGES = ("numpy", "torchvision", "timm", "pytorch-metric-learning", "faiss-cpu")
_TERMS = ("loss", "positive", "negative", "variance")
_POINTS = 60
# What a line must have to be a record: files of other kinds may lie in the same folder.
_NEEDED = {"table", "row", "trial", "settings", "scores"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of an experiment, and what its record must say.

    Args:
        table: Name of the table, such as "loss-ablation".
        row: Label of the row, such as "CBML +MVC".
        config: Every choice; `data.source` is the name of a dataset, not its place. Its
            `data.model_selection` "test" trains on all training classes and chooses the model on
            the test, which is optimistic.
        scale: Scale of the run, "full" or "laptop".
        scored: The splits whose scores are noted; a trial never has "test" among them.
        overrides: What was changed in the row, by flat names such as "steps".
        learning_rate_from: Where the learning rate comes from: "config", "trials on validation
            classes", or what the job itself tries, "trial" or "search".
    """

    table: str
    row: str
    config: RunConfig
    scale: Scale
    scored: tuple[str, ...] = ("test",)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    learning_rate_from: str = "config"

    @property
    def trial(self) -> bool:
        """Whether it is a trial, which sees validation classes alone."""
        return "test" not in self.scored

    @property
    def optimistic(self) -> bool:
        """Whether its model is chosen on the test classes."""
        return self.config.data.model_selection == "test"

    @property
    def name(self) -> str:
        """A short name for progress lines."""
        words = ", ".join(f"{key}={value}" for key, value in self.overrides.items())
        changed = f" [{words}]" if words else ""
        chosen = ", chosen on the test: optimistic" if self.optimistic else ""
        return f"{self.table}: {self.row}{changed}, seed {self.config.training.seed}{chosen}"

    def settings(self) -> dict[str, Any]:
        """All that decides the result, by flat names, ready for JSON."""
        found = {}
        for key, (section, name) in _KEYS.items():
            value = getattr(getattr(self.config, section), name)
            changed = value != getattr(getattr(_PLAIN, section), name)
            if key in _NAMING or (key not in _LOCAL and changed):
                found[key] = dict(value) if isinstance(value, Mapping) else value
        return found


def run_name(job: Job) -> str:
    """The folder of a job's run: jobs of several tables that need the same run share it."""
    text = json.dumps({"settings": job.settings()}, sort_keys=True)
    config = job.config
    what = config.method.name or config.loss.name
    words = f"{config.data.source} {what} {config.training.seed}".lower()
    name = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def build_record(job: Job, folder: Path, scores: Mapping[str, Any]) -> Record:
    """The line of a finished job; nothing in it tells where the images or the run lie.

    `scores` are by split, with "failed" and a reason where the run broke off, and "packages" as of
    the run.
    """
    run, metrics = with_current_names(read_record(folder)), read_metrics(folder)
    data = run.get("data", {})
    # Of the run, not of today; run folders from before they were kept have none.
    packages = scores.get("packages") or package_versions()
    wanted = {split: scores[split] for split in ("validation", *job.scored) if split in scores}
    return {
        "table": job.table,
        "row": job.row,
        "data": job.config.data.source,
        "scale": job.scale,
        "model_selection": job.config.data.model_selection,
        "seed": job.config.training.seed,
        "trial": job.trial,
        "overrides": dict(job.overrides),
        "learning_rate_from": job.learning_rate_from,
        "settings": job.settings(),
        "run": run_name(job),
        "loss": run.get("loss"),
        "learning_rates": run.get("learning_rates"),
        "parameters": run.get("parameters"),
        "weights": run.get("model", {}).get("provenance"),
        "images": {name: data.get(name) for name in ("dataset", "counts", "partial")},
        "steps": run.get("steps_done"),
        "best_step": run.get("best_step"),
        "test_evaluations": _test_evaluations(job, run, metrics),
        "resumed": len(run.get("resumed", [])),
        "environment": run.get("environment", {}) | {"packages": packages},
        "seconds": _seconds(metrics),
        "seconds_per_step": _seconds_per_step(metrics),
        "peak_bytes": (run.get("plan") or {}).get("peak_bytes"),
        "failed": scores.get("failed"),
        "scores": wanted,
        "validation": _validation_curve(metrics),
        "terms": _terms(metrics),
    }


def records_file(out: Path, job: Job) -> Path:
    """The file that a job's record belongs to; trials have their own."""
    trials = "-trials" if job.trial else ""
    return out / f"{job.table}-{job.scale}" / f"{job.config.data.source}{trials}.jsonl"


def add_records(path: Path, records: Sequence[Record]) -> None:
    """Add lines to a file of records; a line for the same row, seed and overrides is replaced."""
    with locked(path.parent, name=f".{path.name}.lock"):
        known = {_key(record): record for record in read_records(path)}
        known |= {_key(record): record for record in records}
        lines = [json.dumps(known[key], sort_keys=True, allow_nan=False) for key in sorted(known)]
        with replaced_file(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_records(path: Path) -> list[Record]:
    """The records of a file, or of all files below a folder; none where there is nothing.

    Args:
        path: A file or a folder.
    """
    files = [path] * path.exists()
    if path.is_dir():  # the curves of single runs, which may still be written to, are no records
        files = sorted(
            file
            for file in path.rglob("*.jsonl")
            if "runs" not in file.relative_to(path).parent.parts
        )
    records = []
    for file in files:
        for number, line in enumerate(read_file(file).splitlines(), start=1):
            try:
                record = json.loads(line)
            except ValueError as error:  # of its letters as well
                raise DamagedFile(
                    f"{file}: line {number} is not JSON ({error}); delete the line, and run the "
                    "same command again: it writes the records of all finished runs"
                ) from None
            if isinstance(record, dict) and record.keys() >= _NEEDED:
                records.append(with_current_names(record))
    return records


def validation_score(record: Record) -> float:
    """Recall@1 on validation classes; below zero where the run broke off or has none."""
    found = record["scores"].get("validation") or {}
    return -1.0 if record["failed"] else float(found.get("recall@1", -1.0))


def _key(record: Record) -> tuple[str, ...]:
    parts = ("table", "scale", "data", "row", "overrides", "model_selection", "trial", "seed")
    kind = record["learning_rate_from"] if record["trial"] else ""  # of rates, or of a search
    return *(str(record[part]) for part in parts), kind, str(record["settings"].get("weights"))


def _test_evaluations(
    job: Job, run: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> int:
    """How often the test classes were scored; choosing on the test scores them each time."""
    chosen_on_it = len(_validation_curve(metrics)) if job.optimistic else 0
    return int(run.get("test_evaluations") or 0) + chosen_on_it


def package_versions() -> dict[str, str]:
    """The versions of the packages here that a result may depend on."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _seconds(metrics: Sequence[Mapping[str, Any]]) -> float:
    """Time of all parts of the run: the clock of each starts at zero."""
    total = last = 0.0
    for line in metrics:
        now = line.get("seconds")
        if now is None:
            continue
        if now < last:
            total += last
        last = now
    return round(total + last, 1)


def _seconds_per_step(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Time from one step to the next that a tenth of the steps stay below.

    The median would tell what else the machine had to do.
    """
    times = [(line["step"], line["seconds"]) for line in metrics if "loss" in line]
    gaps = [
        after - before
        for (first, before), (second, after) in itertools.pairwise(times)
        if second == first + 1 and after > before
    ]
    if len(gaps) < 2:
        return gaps[0] if gaps else None
    return float(f"{statistics.quantiles(gaps, n=10, method='inclusive')[0]:.3g}")


def _validation_curve(metrics: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    return [
        [line["step"], round(line["validation"]["recall@1"], 5)]
        for line in metrics
        if "recall@1" in line.get("validation", {})
    ]


def _terms(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Loss and its parts as means over equally long stretches, few enough for a record."""
    lines = [line for line in metrics if isinstance(line.get("loss"), float)]
    length = max(1, -(-len(lines) // _POINTS))
    stretches = [lines[start : start + length] for start in range(0, len(lines), length)]
    terms: dict[str, list[float]] = {"step": [stretch[-1]["step"] for stretch in stretches]}
    for name in _TERMS:
        if lines and all(isinstance(line.get(name), float) for line in lines):
            terms[name] = [
                float(f"{sum(line[name] for line in stretch) / len(stretch):.5g}")
                for stretch in stretches
            ]
    return terms
