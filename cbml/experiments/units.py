"""One thing to compute: a row of a table, with one seed, at one scale, under one protocol."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cbml.training import Recipe, Settings

__all__ = ["Protocol", "Scale", "Unit", "run_name"]

Scale = Literal["full", "laptop"]
Protocol = Literal["honest", "paper"]

# What names a run. Other fields of Recipe and Settings count where they are not at their default,
# so that a field that joins them later does not make a finished run an unknown one.
_NAMING = (
    *("data", "backbone", "dim", "pooling", "batch_norm", "weights", "crop", "classes_per_batch"),
    *("pictures_per_class", "loss", "loss_options", "validation", "seed", "steps", "epochs"),
    *("optimiser", "learning_rate", "weight_decay", "backbone_factor", "head_factor"),
    *("loss_factor", "schedule", "drop_at", "drop_factor", "warmup_steps", "clip_norm"),
    *("validate_every", "patience", "choose_by"),
)
# How a run is read, kept and shown does not change what is learnt.
_LOCAL = (
    *("workers", "bad_limit", "tensorboard", "checkpoint_every"),
    *("keep_checkpoints", "chunk_size", "settings"),
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A run and what is to be noted of it.

    Args:
        table: such as "loss-ablation".
        row: such as "CBML +MVC".
        recipe: every choice; `data` is the name of a set, not its place.
        scale: "full" or "laptop".
        protocol: "honest" chooses the model on held-out training classes and looks at the test
            once; "paper" trains on all training classes and chooses on the test, which is
            optimistic.
        scored: the splits whose scores are noted; a trial never has "test" among them.
        overrides: what was changed in the row, as "key=value".
        rate_from: where the learning rate comes from.
    """

    table: str
    row: str
    recipe: Recipe
    scale: Scale
    protocol: Protocol = "honest"
    scored: tuple[str, ...] = ("test",)
    overrides: tuple[str, ...] = ()
    rate_from: str = "recipe"

    @property
    def trial(self) -> bool:
        """Whether it is a trial, which sees validation classes alone."""
        return "test" not in self.scored

    @property
    def name(self) -> str:
        """A short name for progress lines."""
        changed = f" [{', '.join(self.overrides)}]" if self.overrides else ""
        chosen = ", chosen on the test: optimistic" if self.protocol == "paper" else ""
        return f"{self.table}: {self.row}{changed}, seed {self.recipe.seed}{chosen}"

    def settings(self) -> dict[str, Any]:
        """All that decides the result, by the names of Recipe and Settings, ready for JSON."""
        return _deciding(self.recipe) | _deciding(self.recipe.settings)


def _deciding(choices: Recipe | Settings) -> dict[str, Any]:
    facts = {}
    for field in dataclasses.fields(choices):
        value = getattr(choices, field.name)
        if field.name in _NAMING or (field.name not in _LOCAL and value != field.default):
            facts[field.name] = dict(value) if isinstance(value, Mapping) else value
    return facts


def run_name(unit: Unit) -> str:
    """The folder of a unit's run: units of several tables that need the same run share it.

    Args:
        unit: names the run.
    """
    identity = {"settings": unit.settings(), "protocol": unit.protocol}
    text = json.dumps(identity, sort_keys=True)
    recipe = unit.recipe
    words = re.sub(r"[^a-z0-9]+", "-", f"{recipe.data} {recipe.loss} {recipe.seed}".lower())
    return f"{words.strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
