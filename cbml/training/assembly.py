"""From a recipe to the parts of a run: pictures, model, batches, scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cbml.data import (
    Batches,
    ClassBalancedSampler,
    ImageSet,
    PackedImages,
    Splits,
    TrainTransform,
    pack,
    short_side,
)
from cbml.data.cache import cache_folder
from cbml.data.checks import load
from cbml.errors import BadData
from cbml.models import Embedder, Execution, embed, embed_across, find_backbone
from cbml.training.memory import keep_freed_memory
from cbml.training.recipe import Recipe
from cbml.training.sizes import fitted_sizes
from cbml.training.team import Team

__all__ = [
    "Evaluate",
    "Rows",
    "Shelf",
    "build_batches",
    "build_execution",
    "build_model",
    "flat_scores",
    "load_splits",
]

Rows = NDArray[np.float32]


# As `cbml.evaluate`: its scores have `.recall` by K and `.as_dict()`.
Evaluate = Callable[..., Any]


def flat_scores(scores: Any) -> dict[str, float]:
    """Every score by a name of its own, such as "recall@1"; those not computed are left out.

    Args:
        scores: of an evaluation.
    """
    flat = {f"recall@{k}": float(share) for k, share in scores.recall.items()}
    plain = scores.as_dict()
    for name in ("map_at_r", "r_precision", "nmi", "ami"):
        if plain.get(name) is not None:
            flat[name] = float(plain[name])
    return flat


@dataclass(frozen=True)
class Shelf:
    """A set of pictures, decoded once, that can be embedded and shown.

    Args:
        images: the readable pictures of the set.
        packed: their pixels.
        numbers: of the readable pictures within `packed`. (N,)
        bad: path and reason of each picture that cannot be read.
    """

    images: ImageSet
    packed: PackedImages
    numbers: tuple[int, ...]
    bad: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, images: ImageSet, crop: int) -> "Shelf":
        """Pack a set in the cache folder, or find it there.

        Args:
            images: the pictures.
            crop: side of the square that the network sees.
        """
        packed = pack(images.paths, cache_folder() / "packed", short_side=short_side(crop))
        numbers = tuple(n for n in range(len(images)) if n not in packed.reasons)
        bad = tuple((str(images.paths[n]), why) for n, why in sorted(packed.reasons.items()))
        kept = images if len(numbers) == len(images) else images.subset(numbers)
        return cls(kept, packed, numbers, bad)

    def embedded(self, model: nn.Module, team: Team | None = None) -> Rows:
        """Unit vectors of all readable pictures, (N, D).

        Args:
            model: an Embedder, or another network with its `preprocessing`, whose crop is the one
                that was packed for.
            team: shares the work; each process gets all rows.
        """
        length: int = model.preprocessing.resize  # type: ignore[assignment]

        def load(number: int) -> torch.Tensor:
            return self.packed.sized(number, length)

        if team is None or team.group is None:
            return embed(model, self.numbers, load=load, progress=False)
        return embed_across(model, self.numbers, team.group, load=load, progress=False)


def load_splits(recipe: Recipe) -> Splits:
    """The pictures of a recipe, with its share of validation classes held out.

    Args:
        recipe: names the set.
    """
    splits = load(
        recipe.data,
        validation=recipe.validation,
        seed=recipe.seed,
        allow_partial=recipe.allow_partial,
    )
    if not len(splits.train):
        raise BadData(f"{recipe.data}: no pictures to train on")
    return splits


def build_model(recipe: Recipe) -> Embedder:
    """The untrained model of a recipe, on the GPU where there is one.

    Args:
        recipe: names backbone, size and weights.
    """
    model = Embedder(
        recipe.backbone,
        dim=recipe.dim,
        pooling=recipe.pooling,
        batch_norm=recipe.batch_norm,
        weights=recipe.weights,
        preprocessing=find_backbone(recipe.backbone).preprocessing.with_crop(recipe.crop),
        seed=recipe.seed,
    )
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def build_execution(recipe: Recipe, model: Embedder) -> Execution:
    """How a recipe's model is run; on a CPU this process keeps its memory from now on.

    Args:
        recipe: names precision and compilation.
        model: on its device.
    """
    device = next(model.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    default = Execution.default(device)
    chosen = default.precision if recipe.precision == "default" else recipe.precision
    return Execution(
        channels_last=default.channels_last,
        precision=chosen,
        compile=recipe.compile,
        fold=default.fold,
    )


def build_batches(recipe: Recipe, images: ImageSet, team: Team) -> Batches:
    """The batches of this process.

    Args:
        recipe: names seed and sizes; those it leaves open are fitted to the set.
        images: what to learn from.
        team: the processes.
    """
    classes, pictures = fitted_sizes(
        images.class_sizes(),
        processes=team.size,
        classes=recipe.classes_per_batch,
        pictures=recipe.pictures_per_class,
    )
    sampler = ClassBalancedSampler(
        images.known_labels,
        classes_per_batch=classes,
        pictures_per_class=pictures,
        seed=recipe.seed,
        rank=team.rank,
        world_size=team.size,
    )
    return Batches(
        images,
        sampler,
        transform=TrainTransform(crop=recipe.crop),
        source=pack(images.paths, cache_folder() / "packed", short_side=short_side(recipe.crop)),
        workers=recipe.workers,
        bad_limit=recipe.bad_limit,
    )
