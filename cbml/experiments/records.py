"""What is kept of a run: one line of JSON with settings, versions, hardware, time and scores."""

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cbml.data.cache import locked
from cbml.errors import DamagedFile
from cbml.experiments.units import Unit, run_name
from cbml.files import replaced_file
from cbml.training import read_metrics, read_record

__all__ = [
    "Record",
    "add_records",
    "build_record",
    "package_versions",
    "read_records",
    "records_file",
]

Record = dict[str, Any]

_PACKAGES = ("numpy", "torchvision", "timm", "pytorch-metric-learning", "faiss-cpu")
_TERMS = ("loss", "positive", "negative", "variance")
_POINTS = 60
# What a line must have to be a record: files of other kinds may lie in the same folder.
_NEEDED = {"table", "row", "trial", "settings", "scores"}


def build_record(unit: Unit, folder: Path, scores: Mapping[str, Any]) -> Record:
    """The line of a finished unit; nothing in it tells where the pictures or the run lie.

    Args:
        unit: what was asked for.
        folder: of its run.
        scores: by split; "failed" with a reason where the run broke off; "packages" as of the run.
    """
    run, metrics = read_record(folder), read_metrics(folder)
    data = run.get("data", {})
    # Of the run, not of today; run folders from before they were kept have none.
    packages = scores.get("packages") or package_versions()
    wanted = {split: scores[split] for split in ("validation", *unit.scored) if split in scores}
    return {
        "table": unit.table,
        "row": unit.row,
        "data": unit.recipe.data,
        "scale": unit.scale,
        "protocol": unit.protocol,
        "seed": unit.recipe.seed,
        "trial": unit.trial,
        "overrides": list(unit.overrides),
        "rate_from": unit.rate_from,
        "settings": unit.settings(),
        "run": run_name(unit),
        "loss": run.get("loss"),
        "rates": run.get("rates"),
        "parameters": run.get("parameters"),
        "weights": run.get("model", {}).get("provenance"),
        "pictures": {name: data.get(name) for name in ("set", "counts", "partial")},
        "steps": run.get("steps_done"),
        "best_step": run.get("best_step"),
        "test_looks": _test_looks(unit, run, metrics),
        "resumed": len(run.get("resumed", [])),
        "environment": run.get("environment", {}) | {"packages": packages},
        "seconds": _seconds(metrics),
        "failed": scores.get("failed"),
        "scores": wanted,
        "validation": _validation_curve(metrics),
        "terms": _terms(metrics),
    }


def records_file(out: Path, unit: Unit) -> Path:
    """The file that a unit's record belongs to; trials have their own.

    Args:
        out: the folder of all tables.
        unit: names table, scale and pictures.
    """
    trials = "-trials" if unit.trial else ""
    return out / f"{unit.table}-{unit.scale}" / f"{unit.recipe.data}{trials}.jsonl"


def add_records(path: Path, records: Sequence[Record]) -> None:
    """Add lines to a file of records; a line for the same row, seed and overrides is replaced.

    Args:
        path: made if missing.
        records: to add.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent / f".{path.name}.lock"):
        known = {_key(record): record for record in read_records(path)}
        known |= {_key(record): record for record in records}
        lines = [json.dumps(known[key], sort_keys=True, allow_nan=False) for key in sorted(known)]
        with replaced_file(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_records(path: Path) -> list[Record]:
    """The records of a file, or of all files below a folder; none where there is nothing.

    Args:
        path: a file or a folder.
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
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            try:
                record = json.loads(line)
            except ValueError as error:  # of its letters as well
                raise DamagedFile(
                    f"{file}: line {number} is not JSON ({error}); delete the line, and run the "
                    "same command again: it writes the records of all finished runs"
                ) from None
            if isinstance(record, dict) and record.keys() >= _NEEDED:
                records.append(record)
    return records


def _key(record: Record) -> tuple[str, ...]:
    parts = ("table", "scale", "data", "row", "overrides", "protocol", "trial", "seed")
    kind = record["rate_from"] if record["trial"] else ""  # a trial of rates or one of a search
    return *(str(record[part]) for part in parts), kind, str(record["settings"].get("weights"))


def _test_looks(unit: Unit, run: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> int:
    """How often the test classes were scored; the paper's protocol does at every validation."""
    chosen_on_it = len(_validation_curve(metrics)) if unit.protocol == "paper" else 0
    return int(run.get("test_looks") or 0) + chosen_on_it


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
