"""Runs side by side: whether a resumed run is the same run, and how two runs differ."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbml.errors import BadData
from cbml.report import score_position
from cbml.runs.config import RunConfig, parse_overrides
from cbml.runs.folder import recorded_config
from cbml.runs.sections import LENGTHS, SECTIONS
from cbml.training import MAY_CHANGE, read_metrics, read_record

# What may differ when a run is resumed. Every other field decides the result.
FREE = frozenset(
    {"data.workers", "training.minutes", "training.tensorboard"}
    | {f"training.{name}" for name in MAY_CHANGE}
)
# What a config may leave open, and a run fills in when it starts.
_OPEN = ("classes_per_batch", "samples_per_class", "chunk_size", "choose_by")


def resumed_config(
    folder: Path, texts: list[str], given: Mapping[str, Any] | None = None
) -> RunConfig:
    """The config of a run with some of its free fields changed.

    Args:
        folder: The run's folder.
        texts: As for `parse_overrides`. A loss, method or backbone of the user's own must be
            repeated: the record of a run never chooses code.
        given: As for `parse_overrides`.
    """
    changes = parse_overrides(texts, given)
    if changes.get("training", {}).get("minutes") is not None:
        raise BadData("minutes: the plan of a run is fixed when it starts; change its --steps")
    sections = dict(read_record(folder).get("config", {}))
    for section, field in (("loss", "name"), ("method", "name"), ("model", "backbone")):
        name = dict(sections.get(section, {})).get(field)
        if name is not None and changes.get(section, {}).get(field) == name:
            sections[section] = {**sections[section], field: getattr(SECTIONS[section](), field)}
    return RunConfig.from_dict(sections).replace(**changes)


def check_same_run(folder: Path, config: RunConfig) -> RunConfig:
    """The config, filled in as the run has filled it; every other difference is refused by name."""
    before, config = recorded_config(folder), as_recorded(folder, config)
    then, now = flat_config(before), flat_config(config)
    for name in [*then, *(name for name in now if name not in then)]:
        if name not in FREE and then.get(name) != now.get(name):
            raise BadData(
                f"{name} was {then.get(name)!r} and is now {now.get(name)!r}: not the same run; "
                "resume it with the former value, or train from scratch in another folder"
            )
    return config


def as_recorded(folder: Path, config: RunConfig) -> RunConfig:
    """The config with what it leaves open as the run in a folder has chosen it.

    Args:
        config: May leave crop, length, batch sizes and the like open.
    """
    before = recorded_config(folder)
    chosen = {
        name: getattr(before.training, name)
        for name in _OPEN
        if getattr(config.training, name) is None
    }
    if config.training.steps is None and config.training.epochs is None:
        chosen |= {name: getattr(before.training, name) for name in LENGTHS}
    crops = {
        name: getattr(before.model, name)
        for name in ("crop", "test_crop")
        if getattr(config.model, name) == 0
    }
    return config.replace(training=chosen, model=crops)


def flat_config(config: RunConfig) -> dict[str, Any]:
    """Every field, and every option of the loss and the method, by section and name."""
    flat: dict[str, Any] = {}
    for section in SECTIONS:
        part = getattr(config, section)
        for option in dataclasses.fields(part):
            value = getattr(part, option.name)
            if option.name == "options":
                flat |= {f"{section}.{name}": entry for name, entry in value.items()}
            else:
                flat[f"{section}.{option.name}"] = value
    return flat


@dataclass(frozen=True)
class Comparison:
    """How the settings and scores of two runs differ.

    Args:
        runs: Their folders.
        settings: Fields of the config that differ, each with its two values.
        scores: The values of both by name, such as "test recall@1"; None where one has none.
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
    return {
        f"{part} {name}": all_[name]
        for part, all_ in parts.items()
        for name in sorted(all_, key=score_position)
    }


def _notes(runs: tuple[Path, Path]) -> list[str]:
    records = [read_record(run) for run in runs]
    notes = [note] if (note := _of_other_images(runs, *records)) else []
    for run, record in zip(runs, records, strict=True):
        if not record.get("finished"):
            notes.append(f"{run}: not finished")
    return notes


def _of_other_images(runs: tuple[Path, Path], first: dict[str, Any], second: dict[str, Any]) -> str:
    """Why scores cannot be compared, or not all of them; "" where they can."""

    def differ(*names: str) -> bool:
        one, two = (record.get("data", {}) for record in (first, second))
        return any(one.get(name) != two.get(name) for name in names)

    if differ("dataset", "counts"):
        return "the runs used different images or splits: their scores cannot be compared"
    sources = [recorded_config(run).data.source for run in runs]
    if sources[0] != sources[1]:
        return (
            f"the images are of {sources[0]} and {sources[1]}: their scores can be compared only "
            "if these hold the same"
        )
    if differ("seed", "validation"):
        return "other training classes were held out: compare test scores, not held-out ones"
    return ""
