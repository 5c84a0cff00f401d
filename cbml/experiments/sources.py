"""Where this machine keeps the pictures and weights that recipes only name."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from cbml.errors import BadData
from cbml.experiments.units import Unit
from cbml.files import sha256
from cbml.training import Recipe

__all__ = ["Sources"]


@dataclass(frozen=True)
class Sources:
    """Where this machine keeps what the recipes only name.

    Args:
        root: folder or archive of the pictures; None for sets that need none, such as emoji.
        weights: file with the backbone's weights; None for what the recipe says.
    """

    root: str | None = None
    weights: str | None = None

    def named(self, unit: Unit) -> Unit:
        """The unit with the hash of the weights in its recipe: other weights are another run.

        Args:
            unit: as planned.
        """
        if self.weights is None:
            return unit
        path = Path(self.weights).expanduser()
        if not path.is_file():
            raise BadData(f"--weights {path}: no such file")
        recipe = dataclasses.replace(unit.recipe, weights=f"sha256:{sha256(path)[:16]}")
        return dataclasses.replace(unit, recipe=recipe)

    def local(self, recipe: Recipe) -> Recipe:
        """The recipe with the places of this machine in it.

        Args:
            recipe: with the name of a set.
        """
        weights = recipe.weights if self.weights is None else f"path:{self.weights}"
        return dataclasses.replace(recipe, data=self.root or recipe.data, weights=weights)
