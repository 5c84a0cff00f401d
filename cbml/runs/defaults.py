"""What a run takes where its config says nothing: by dataset, labels and method."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cbml.methods import METHODS
from cbml.runs.sections import DataConfig, MethodConfig

Changes = dict[str, dict[str, Any]]


class FirstRun(NamedTuple):
    """A run that nobody has asked for more: its minutes, the crop and the steps they allow."""

    minutes: int
    crop: int
    steps: int


# By kind of device and data. On a CPU, minutes of two cores; nothing is measured, so that the same
# command learns the same everywhere. On a GPU, the paper's pixels; its minutes are not measured.
FIRST_RUNS: dict[str, dict[str, FirstRun]] = {
    "cpu": {"emoji": FirstRun(3, 96, 100), "folder": FirstRun(10, 128, 200)},
    "cuda": {"emoji": FirstRun(1, 96, 100), "folder": FirstRun(10, 227, 1000)},
}
_EMOJI = FIRST_RUNS["cpu"]["emoji"]

# A network that was pretrained at 224 pixels and then learned at fewer sees more in larger images,
# at no cost in training. Sides that its strides of 32 divide leave no borders.
_PRETRAINED, _STRIDE = 224, 32

# What emoji need to give a first result in minutes on a CPU: their images are 72 pixels wide, and a
# class has five to seven of them.
_STARTS: dict[str, Changes] = {
    "emoji": {
        "model": {"crop": _EMOJI.crop},
        "optimizer": {"learning_rate": 2e-4},
        "training": {
            "classes_per_batch": 60,
            "samples_per_class": 2,
            "steps": _EMOJI.steps,
            "validate_every": 50,
        },
    }
}
# The recipe of runs with labels, see docs/recipe.md. The paper's crops, down to 0.16 of the area,
# are for 227 pixels and thousands of steps, and its program keeps the last weights.
_LABELED: Changes = {
    "augmentation": {"min_area": 0.5},
    "loss": {"proxy_weight": None},
    "optimizer": {"ema": 0.15},
}
# Methods may embed their training images again and again, at the size at which they are packed.
_LABELED_ALONE: Changes = {"model": {"test_crop": 0}}
# 128 dimensions, drawn batch sizes and no mining are from the paper's section 4.7. That the first
# clusters are those of whitened features, and not of a random mixture of them, is ours.
_UNLABELED: Changes = {
    "model": {"dim": 128},
    "training": {"samples_per_class": 4},
    "pseudo_labels": {"head_start": "whitened"},
}


def larger_crop(crop: int) -> int:
    """A quarter more, up to the stride of the networks, at most what they were pretrained with.

    Args:
        crop: Side of the training images.
    """
    return max(crop, min(_PRETRAINED, -(-5 * crop // (4 * _STRIDE)) * _STRIDE))


def larger_views_rate(crop: int) -> float:
    """The learning rate of larger views: the more a network sees, the less it has to change.

    Args:
        crop: Side of the training images.
    """
    learning_rate: float = METHODS["larger_views"].defaults["optimizer"]["learning_rate"]
    return round(learning_rate * min(1.0, (64 / crop) ** 2), 6)


def defaults_for(data: DataConfig, method: MethodConfig) -> Changes:
    """The fields by section: of the dataset, of the labels, of the method.

    Args:
        data: Names the dataset and its labels.
        method: Names the method.
    """
    known = data.labels == "known"
    layers: list[Mapping[str, Mapping[str, Any]]] = [
        _LABELED_ALONE if known and method.name is None else {},
        _STARTS.get(data.source, {}),
        _LABELED if known else _UNLABELED,
    ]
    if data.labels == "each":
        layers.append({"training": {"samples_per_class": 2}})  # two crops of each image
    if method.name in METHODS:
        layers.append(METHODS[method.name].defaults)
    start: Changes = {}
    for layer in layers:
        for name, part in layer.items():
            start[name] = start.get(name, {}) | dict(part)
    return start


def more_classes(held_out: float) -> str:
    """What to do where too few classes are held out, the same wherever it is said.

    Args:
        held_out: The share of the training classes that is held out now.
    """
    more = "hold out more with --set validation=0.4, or " if held_out < 0.4 else ""
    return f"{more}add classes"
