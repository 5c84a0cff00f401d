"""Whether a resumed run is the same run."""

import dataclasses
from pathlib import Path
from typing import Any

from cbml.errors import BadData
from cbml.runs.config import RunConfig
from cbml.runs.folder import recorded_config
from cbml.runs.overrides import parse_overrides
from cbml.runs.sections import SECTIONS
from cbml.training import read_record

# What may differ: how long the run is, what is written how often, what is done about trouble, and
# how many threads read the images. Every other field decides the result.
FREE = frozenset(
    {
        *("training.steps", "training.epochs", "training.patience", "training.validate_every"),
        *("training.checkpoint_every", "training.keep_checkpoints", "training.tensorboard"),
        *("training.collapse", "training.bad_numbers", "training.skips_allowed", "data.workers"),
    }
)
_OPEN = ("classes_per_batch", "samples_per_class")  # None is filled in when a run starts


def resumed_config(folder: Path, texts: list[str]) -> RunConfig:
    """The config of a run with some of its free fields changed.

    Args:
        folder: The run's folder.
        texts: As for `parse_overrides`. A loss, method or backbone of the user's own must be
            repeated: the record of a run never chooses code.
    """
    changes = parse_overrides(texts)
    facts = dict(read_record(folder).get("config", {}))
    for section, field in (("loss", "name"), ("method", "name"), ("model", "backbone")):
        name = dict(facts.get(section, {})).get(field)
        if name is not None and changes.get(section, {}).get(field) == name:
            facts[section] = {**facts[section], field: getattr(SECTIONS[section](), field)}
    return RunConfig.from_dict(facts).replace(**changes)


def check_same_run(folder: Path, config: RunConfig) -> RunConfig:
    """The config with the batch sizes of the run; every other difference is refused by name.

    Args:
        folder: The run's folder.
        config: What the run is to be continued with.
    """
    before = recorded_config(folder)
    sizes = {
        name: getattr(before.training, name)
        for name in _OPEN
        if getattr(config.training, name) is None
    }
    config = config.replace(training=sizes)
    then, now = _flat(before), _flat(config)
    for name in [*then, *(name for name in now if name not in then)]:
        if name not in FREE and then.get(name) != now.get(name):
            raise BadData(
                f"{name} was {then.get(name)!r} and is now {now.get(name)!r}: not the same run; "
                "resume it with the former value, or train from scratch in another folder"
            )
    return config


def _flat(config: RunConfig) -> dict[str, Any]:
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
