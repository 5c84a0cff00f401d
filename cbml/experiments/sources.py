"""Where this machine keeps the pictures and weights that recipes only name."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbml.data.checks import recognise
from cbml.errors import BadData
from cbml.experiments.rows import DATA_NAMES
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

    def named(self, units: Sequence[Unit]) -> list[Unit]:
        """The units with the hash of the weights in their recipes: other weights are another run.

        One folder cannot hold the pictures of several sets, nor one file the weights of several
        networks, and pictures of another set than the units say are refused.

        Args:
            units: as planned.
        """
        if self.root is not None:
            self._check_root({unit.recipe.data for unit in units})
        if self.weights is None:
            return list(units)
        path = Path(self.weights).expanduser()
        if not path.is_file():
            raise BadData(f"--weights {path}: no such file")
        networks = {unit.recipe.backbone for unit in units if unit.recipe.weights != "none"}
        if len(networks) > 1:
            raise BadData(
                f"--weights {path}: one file for {', '.join(sorted(networks))}; choose the rows of "
                "one network by --only"
            )
        mark = f"sha256:{sha256(path)[:16]}"
        return [
            unit
            if unit.recipe.weights == "none"
            else dataclasses.replace(unit, recipe=dataclasses.replace(unit.recipe, weights=mark))
            for unit in units
        ]

    def _check_root(self, sets: set[str]) -> None:
        if len(sets) > 1:
            raise BadData(
                f"--root {self.root}: one place for {', '.join(sorted(sets))}; choose one by --data"
            )
        found = recognise(str(self.root))
        if found not in ("folder", "table", *sets):
            raise BadData(f"--root {self.root}: this is {found}; ask for it by --data {found}")
        known = sets & DATA_NAMES.keys()
        if found == "folder" and known:  # would be split and called otherwise than it is
            name = DATA_NAMES[known.pop()]
            raise BadData(
                f"--root {self.root}: nothing here is known from {name}; see cbml data check"
            )

    def local(self, recipe: Recipe) -> Recipe:
        """The recipe with the places of this machine in it.

        Args:
            recipe: with the name of a set.
        """
        given = self.weights is not None and recipe.weights != "none"
        weights = f"path:{self.weights}" if given else recipe.weights
        return dataclasses.replace(recipe, data=self.root or recipe.data, weights=weights)
