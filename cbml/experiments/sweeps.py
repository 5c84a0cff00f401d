"""What `--set` and `--search` change in a recipe, and what they may not change."""

import dataclasses
import difflib
import inspect
import itertools
from collections.abc import Sequence

from cbml.errors import BadData
from cbml.losses import LOSSES, build_loss
from cbml.training import Recipe, Settings, with_overrides

__all__ = ["changed_recipe", "check_key", "combinations"]

_ASKED = {"seed": "seeds", "data": "data"}
_CONSTRAINT = ("variance_weight", "target_mix", "variance_reduction")


def combinations(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination of the values of a sweep, as "key=value" each.

    Args:
        sweeps: "key=value" or "key=value,value" each.
    """
    choices = []
    for sweep in sweeps:
        key, equals, values = sweep.partition("=")
        if not equals or not values:
            raise BadData(f"--set {sweep}: write key=value or key=value,value")
        check_key(key, f"--set {sweep}")
        if key == "weights" and "path:" in values:  # its hash names the run, not its place
            raise BadData(f"--set {sweep}: say it by --weights instead")
        choices.append([f"{key}={value}" for value in values.split(",")])
    return list(itertools.product(*choices))


def check_key(key: str, asked: str) -> None:
    """Refuse what has an option of its own on the command line.

    Args:
        key: of a setting.
        asked: how it was asked for.
    """
    if key in _ASKED:
        raise BadData(f"{asked}: say it by --{_ASKED[key]} instead")


def changed_recipe(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """A row's recipe with some settings replaced; what its loss refuses is refused here.

    Args:
        recipe: of the row.
        overrides: "key=value" each; an option of the loss needs no "loss." before.
    """
    changed = with_overrides(recipe, [_full_key(recipe, override) for override in overrides])
    if overrides and changed.parameters == "given":  # else the pictures tell what is missing
        try:
            build_loss(changed.loss, changed.loss_options, classes=3, dim=changed.dim, seed=0)
        except (TypeError, ValueError) as error:
            raise BadData(f"--set {' '.join(overrides)}: {error}") from None
    return changed


def _full_key(recipe: Recipe, override: str) -> str:
    """An option of the row's loss under its full name."""
    key = override.partition("=")[0]
    fields = {field.name for kind in (Recipe, Settings) for field in dataclasses.fields(kind)}
    if key in fields or key.startswith("loss."):
        return override
    options = {*inspect.signature(LOSSES[recipe.loss]).parameters, *_CONSTRAINT}
    if key in options or key.startswith("ratio."):
        return f"loss.{override}"
    near = difflib.get_close_matches(key, sorted(fields | options), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "leave rows without it out by --only"
    raise BadData(f"--set {key}: neither a setting nor an option of {recipe.loss}; {hint}")
