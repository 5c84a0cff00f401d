"""Two runs side by side: what was set differently, and what came of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbml.errors import BadData
from cbml.runs.folder import recorded_config
from cbml.runs.resume import flat_config
from cbml.training import read_metrics, read_record


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Args:
        runs: Their folders.
        settings: Fields of the config that differ, each with its two values.
        scores: By name, such as "test recall@1", the values of both; None where one has none.
        notes: What makes the scores incomparable, a sentence each.
    """

    runs: tuple[Path, Path]
    settings: dict[str, tuple[Any, Any]]
    scores: dict[str, tuple[float | None, float | None]]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return {**vars(self), "runs": [str(run) for run in self.runs]}


def compare_runs(first: Path, second: Path) -> Comparison:
    """What two runs were set to and what they scored, from their records.

    Args:
        first: A run's folder.
        second: Another.
    """
    runs = (first, second)
    one, two = (flat_config(recorded_config(run)) for run in runs)
    names = [*one, *(name for name in two if name not in one)]
    settings = {
        name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)
    }
    found = [_scores(run) for run in runs]
    if not any(found):
        raise BadData(f"{first} and {second}: neither has scores; train them to the end")
    scores = {
        name: (found[0].get(name), found[1].get(name))
        for name in dict.fromkeys([*found[0], *found[1]])
    }
    return Comparison(runs, settings, scores, _notes(runs))


def _scores(run: Path) -> dict[str, float]:
    record, lines = read_record(run), read_metrics(run)
    validations = {line["step"]: line["validation"] for line in lines if "validation" in line}
    parts = {
        "held-out start": validations.get(0, {}),
        "held-out": validations.get(record.get("best_step"), {}),
        "test start": record.get("test_start", {}),
        "test": record.get("test", {}),
    }
    return {f"{part} {name}": value for part, all_ in parts.items() for name, value in all_.items()}


def _notes(runs: tuple[Path, Path]) -> list[str]:
    records = [read_record(run) for run in runs]
    counts = [record.get("data", {}).get("counts") for record in records]
    notes = []
    if counts[0] != counts[1]:
        notes.append("the runs have other images or splits: their scores are not of one test")
    for run, record in zip(runs, records, strict=True):
        if not record.get("finished"):
            notes.append(f"{run}: not finished")
    return notes
