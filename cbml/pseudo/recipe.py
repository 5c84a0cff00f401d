"""What a run without labels starts from."""

import dataclasses
from collections.abc import Iterable

from cbml.errors import BadData
from cbml.training import Recipe, recipe_for, with_overrides

__all__ = ["batch_sizes", "unlabelled_recipe"]

# 128 dimensions, drawn batch sizes and no mining are from the paper's section 4.7. That the first
# clusters are those of whitened features, and not of a random mixture of them, is ours.
_START = ("labels=none", "dim=128", "pictures_per_class=4", "head_start=whitened")
_MINING = "mining_margin"


def unlabelled_recipe(data: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe to start from for pictures without labels, with some fields replaced.

    Args:
        data: a folder, an archive, a table, or the name of a set.
        overrides: as for `with_overrides`; "labels=each" draws two crops of each picture.
    """
    words = list(overrides)
    pairs = ("pictures_per_class=2",) if "labels=each" in words else ()
    recipe = with_overrides(recipe_for(data), [*_START, *pairs, *words])
    if recipe.loss == "cbml" and _MINING not in recipe.loss_options:
        options = {**recipe.loss_options, _MINING: None}
        recipe = dataclasses.replace(recipe, loss_options=options)
    batch_sizes(recipe)
    return recipe


def batch_sizes(recipe: Recipe) -> tuple[int, int]:
    """Smallest and largest batch of a recipe without labels.

    Args:
        recipe: its `batch_range` is one number, or two with a dash.
    """
    low, _, high = recipe.batch_range.partition("-")
    if not (low.isdecimal() and (high or low).isdecimal()):
        raise BadData(f"batch_range={recipe.batch_range}: write 100, or 80-200")
    return int(low), int(high or low)
