"""Constants of the loss that are estimated once, from the start model and the training pictures."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.data import ImageSet
from cbml.errors import BadData, DamagedFile
from cbml.models import Embedder, find_backbone
from cbml.training.assembly import Shelf
from cbml.training.recipe import Recipe
from cbml.training.runs import read_record
from cbml.training.team import Team
from cbml.training.tools import Estimate

__all__ = [
    "check_parameters",
    "estimate_parameters",
    "kept_parameters",
    "sample_places",
    "with_default_parameters",
    "with_parameters",
]

# Enough for means and spreads of similarities; a CPU embeds them in minutes.
PICTURES = 4096
PICTURES_PER_CLASS = 32


def estimate_parameters(
    recipe: Recipe, model: Embedder, images: ImageSet, estimate: Estimate, team: Team
) -> dict[str, Any]:
    """The record of an estimate, with the numbers of pictures and classes that it saw.

    At most 4,096 pictures are embedded, drawn by the recipe's seed.

    Args:
        recipe: of the run.
        model: as it is before the first step.
        images: the training pictures.
        estimate: embeddings and labels in, record out.
        team: shares the work; each process gets the same record.
    """
    shelf = Shelf.of(images.subset(sample_places(images.known_labels, recipe.seed)), recipe.crop)
    labels = shelf.images.known_labels
    found = estimate(shelf.embedded(model, team), labels)
    return {**found, "pictures": len(labels), "classes": len(np.unique(labels))}


def kept_parameters(folder: Path) -> dict[str, Any]:
    """The record that a run was started with.

    Args:
        folder: of the run.
    """
    record = read_record(folder)
    if record.get("parameters") is None:
        raise BadData(
            f"{folder}: was not started with parameters=from-data, and cannot change to it"
        )
    parameters = record["parameters"]
    if not (isinstance(parameters, dict) and isinstance(parameters.get("options"), dict)):
        raise DamagedFile(f"{folder / 'run.json'}: its parameters are not a record of this program")
    return parameters


def check_parameters(recipe: Recipe) -> None:
    """Refuse a recipe that names a ratio of the loss and asks for the one of the data as well.

    Args:
        recipe: of a run that is planned.
    """
    if recipe.parameters == "from-data" and "ratio" in recipe.loss_options:
        raise BadData("loss.ratio and parameters=from-data are two things: choose one")


def with_parameters(recipe: Recipe, parameters: Mapping[str, Any]) -> Recipe:
    """The recipe with estimated options; those that it gives itself stay.

    Args:
        recipe: of the run.
        parameters: the record of an estimate.
    """
    check_parameters(dataclasses.replace(recipe, parameters="from-data"))
    options = {**parameters["options"], **recipe.loss_options}
    return dataclasses.replace(recipe, loss_options=options)


def with_default_parameters(recipe: Recipe) -> Recipe:
    """The recipe with its loss's constants estimated, where that is the better start.

    So it is for CBML without a ratio of its own on top of a pretrained network. Similarities of an
    untrained one tell nothing of the classes, and constants estimated from them would be noise.

    Args:
        recipe: whose constants nobody has decided about.
    """
    source = recipe.weights
    if source == "default":
        source = find_backbone(recipe.backbone).weights
    own_ratio = any(name.split(".")[0] == "ratio" for name in recipe.loss_options)
    if recipe.loss != "cbml" or recipe.labels != "known" or source == "none" or own_ratio:
        return recipe
    return dataclasses.replace(recipe, parameters="from-data")


def sample_places(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Places of at most 4,096 pictures, ascending: up to 32 of a class, as many classes as fit.

    Args:
        labels: of all pictures. (N,)
        seed: of the draw.
    """
    if len(labels) <= PICTURES:
        return np.arange(len(labels))
    random = np.random.default_rng(seed)
    mixed = random.permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]
    starts = np.flatnonzero(np.diff(labels[by_class], prepend=-1))
    groups = [group[:PICTURES_PER_CLASS] for group in np.split(by_class, starts[1:])]
    order = random.permutation(len(groups))
    sizes = np.cumsum([len(groups[place]) for place in order])
    fitting = order[: max(2, int((sizes <= PICTURES).sum()))]
    return np.sort(np.concatenate([groups[place] for place in fitting]))
