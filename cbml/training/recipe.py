"""A run as one frozen dataclass, and overrides of it that reject what they do not know."""

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cbml.errors import BadData
from cbml.training.settings import Settings

__all__ = [
    "CLASSES_PER_BATCH",
    "PICTURES_PER_CLASS",
    "Recipe",
    "plain_value",
    "recipe_for",
    "recipe_of",
    "with_overrides",
]

# As in the authors' program for CUB.
CLASSES_PER_BATCH = 15
PICTURES_PER_CLASS = 8


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every choice of a run: pictures, model, batches, loss and loop.

    Args:
        data: a folder, an archive, a table, or the name of a set, such as "emoji".
        backbone: of the model; the default learns on a CPU and its weights come with pip.
        dim: of the embedding. 512 in the paper's main tables.
        pooling: as for Embedder.
        batch_norm: as for Embedder.
        weights: as for Embedder.
        crop: side of the square the network sees; 227 in the paper.
        classes_per_batch: None for 15, as in the authors' program for CUB, or for all classes
            where there are fewer.
        pictures_per_class: None for 8, as in the authors' program for CUB, or for more where there
            are fewer than 15 classes.
        loss: its name in the table of losses.
        loss_options: options of the loss by name.
        parameters: constants of the loss: "given", or estimated "from-data" before the first step,
            where `loss_options` does not give them.
        labels: "known"; "none" clusters the pictures and learns from the clusters; "each" makes
            every picture a class of its own, whose members are its crops.
        clusters: how many, without labels; None for one for every four pictures.
        refresh_epochs: passes between two clusterings.
        cluster_by: "embedding", or "features", those before the linear layer, whitened.
        head_start: "random", or "whitened", without labels: the linear layer begins by whitening
            the features of the pictures.
        batch_range: batch size without labels, "80-200" to draw one for each pass, or one number.
        study: look, without labels, at the labels that there are, to write down how well they are
            found; never to train or to choose.
        validation: share of the training classes that choose the model; 0 for none.
        seed: of held-out classes, batches, crops, start values and proxies.
        workers: threads that prepare batches ahead.
        precision: "float32", or "bfloat16" for the backbone; "default" for the device's.
        compile: let torch.compile fuse the network.
        bad_limit: share of unreadable pictures above which the run fails.
        allow_partial: accept a set that is not whole.
        tensorboard: write all numbers of the run for tensorboard as well.
        settings: of the loop.
    """

    data: str
    backbone: str = "efficientnet_lite0"
    dim: int = 512
    pooling: str = "default"
    batch_norm: str = "default"
    weights: str = "default"
    crop: int = 227
    classes_per_batch: int | None = None
    pictures_per_class: int | None = None
    loss: str = "cbml"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    parameters: Literal["given", "from-data"] = "given"
    labels: Literal["known", "none", "each"] = "known"
    clusters: int | None = None
    refresh_epochs: int = 1
    cluster_by: Literal["embedding", "features"] = "embedding"
    head_start: Literal["random", "whitened"] = "random"
    batch_range: str = "80-200"
    study: bool = False
    validation: float = 0.2
    seed: int = 0
    workers: int = 1
    precision: Literal["default", "float32", "bfloat16"] = "default"
    compile: bool = False
    bad_limit: float = 0.05
    allow_partial: bool = False
    tensorboard: bool = False
    settings: Settings = field(default_factory=Settings)

    @property
    def batch_size(self) -> int:
        """Pictures in a batch, where the set has classes enough."""
        classes = self.classes_per_batch or CLASSES_PER_BATCH
        return classes * (self.pictures_per_class or PICTURES_PER_CLASS)

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return dataclasses.asdict(self)


# What a set needs to give a first result in minutes on a CPU: its pictures are 72 pixels wide and
# a class has five to seven of them.
_QUICK = ("crop=96", "classes_per_batch=30", "pictures_per_class=4", "steps=120")
_STARTS: dict[str, tuple[str, ...]] = {
    "emoji": (*_QUICK, "learning_rate=2e-4", "validate_every=40")
}


def recipe_for(data: str) -> Recipe:
    """The recipe to start from for some pictures.

    Args:
        data: a folder, an archive, a table, or the name of a set.
    """
    return with_overrides(Recipe(data=data), _STARTS.get(data, ()))


def recipe_of(facts: Mapping[str, Any]) -> Recipe:
    """The recipe that `as_dict` described.

    Args:
        facts: as read back from JSON.
    """
    try:
        return Recipe(**{**facts, "settings": Settings(**facts["settings"])})
    except (KeyError, TypeError) as error:
        raise BadData(f"run.json: not the recipe of a run of this version ({error})") from None


def with_overrides(recipe: Recipe, overrides: Iterable[str]) -> Recipe:
    """A recipe with some fields replaced.

    Args:
        recipe: to start from.
        overrides: "key=value" each; a key is a field of Recipe or of Settings, or "loss." and an
            option of the loss.
    """
    own = {hint.name for hint in dataclasses.fields(Recipe)} - {"settings", "loss_options"}
    loop = {hint.name for hint in dataclasses.fields(Settings)}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise BadData(f"--set {override}: write key=value")
        if key.startswith("loss.") and key != "loss.":
            options = {**recipe.loss_options, key.removeprefix("loss."): plain_value(text)}
            recipe = dataclasses.replace(recipe, loss_options=options)
        elif key in own:
            recipe = dataclasses.replace(recipe, **{key: _typed(Recipe, key, text)})
        elif key in loop:
            changed = _changed(recipe.settings, key, _typed(Settings, key, text))
            recipe = dataclasses.replace(recipe, settings=changed)
        else:
            names = sorted(own | loop)
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise BadData(f"--set {key}: no such setting; {hint}")
    return recipe


def _changed(settings: Settings, key: str, value: Any) -> Settings:
    changes = {key: value}
    if value is not None and key in ("steps", "epochs"):  # one of the two says how long
        changes["epochs" if key == "steps" else "steps"] = None
    return dataclasses.replace(settings, **changes)


def plain_value(text: str) -> Any:
    """A number, True, False or None if the text reads like one, else the text.

    Args:
        text: as typed.
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _typed(owner: type, key: str, text: str) -> Any:
    hint = get_type_hints(owner)[key]
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise BadData(f"--set {key}={text}: use one of {', '.join(get_args(hint))}")
        return text
    value = plain_value(text)
    if value is None and types.NoneType in kinds:
        return None
    if float in kinds and type(value) is int:
        return float(value)
    if str in kinds:
        return text
    if type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds if kind is not types.NoneType)
        raise BadData(f"--set {key}={text}: needs {names}")
    return value
