"""The two scales of a row's config: the paper's, and one that a laptop finishes.

Where the paper and the authors' program are silent (the schedules for Cars, SOP, In-Shop, ImageNet
and for small embeddings), the numbers here are our decision.
"""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from cbml.errors import BadData
from cbml.experiments.rows import Changes, Row, Scale, merged
from cbml.losses import LOSSES
from cbml.runs import FLAT_KEYS, SECTIONS, RunConfig, build_run_loss

# The paper's numbers of clusters; for other datasets the number of their training classes.
_CLUSTERS = {"cub": 100, "cars": 100, "sop": 10_000, "inshop": 3_997, "emoji": 844}


def _batch(classes: int, samples: int) -> dict[str, int]:
    return {"classes_per_batch": classes, "samples_per_class": samples}


# 120 images in a batch on CUB in the authors' program; 200 on SOP, 100 with ResNet-50 in the
# paper; 100 on ImageNet in the paper.
_SMALL = _batch(15, 8) | {"steps": 5_000, "validate_every": 200}
_PRODUCTS = _batch(40, 5) | {"steps": 20_000, "validate_every": 1_000}
_FULL_DATA = {
    "cub": _SMALL,
    "cars": _SMALL,
    "sop": _PRODUCTS,
    "inshop": _PRODUCTS,
    "imagenet": _batch(20, 5) | {"steps": 100_000, "validate_every": 5_000},
}
_FULL: Changes = {
    "model": {"crop": 227},
    "optimizer": {
        "name": "adam",
        "learning_rate": 3e-5,
        "weight_decay": 5e-4,
        "schedule": "step",
        "drop_factor": 0.1,
    },
    "training": {"checkpoint_every": 200},
}
# The authors' program drops the rate after so many of 5,000 steps; elsewhere at the same share.
_DROPS = {"googlenet": 3000}
_DROP, _OF_STEPS = 1200, 5000
_LAPTOP: Changes = {
    "model": {"backbone": "efficientnet_lite0"},
    "optimizer": {
        "name": "adam",
        "learning_rate": 1e-4,
        "weight_decay": 5e-4,
        "schedule": "constant",
    },
    "training": {"steps": 200, "validate_every": 100, "checkpoint_every": 100},
}
# Emoji are 72 pixels wide and a class has five to seven of them.
LAPTOP_DATA: Mapping[str, Changes] = {
    "emoji": {"model": {"crop": 64}, "training": _batch(30, 4)},
    "cub": {"model": {"crop": 96}, "training": _batch(15, 8)},
    "cars": {"model": {"crop": 96}, "training": _batch(15, 8)},
    "sop": {"model": {"crop": 96}, "training": _batch(24, 5)},
    "inshop": {"model": {"crop": 96}, "training": _batch(24, 5)},
}
# From random weights the learning rate of fine-tuning moves nothing.
RANDOM_START: Changes = {"model": {"weights": "none"}, "optimizer": {"learning_rate": 1e-3}}
# Its memory is filled after a fifth of the laptop's steps, as of 5,000 in its paper.
_LAPTOP_LOSSES: Mapping[str, Changes] = {"multi_similarity_xbm": {"loss": {"warmup_steps": 40}}}
# Options of the variance constraint, which any loss takes.
_CONSTRAINT = ("variance_weight", "target_mix", "variance_reduction")


def base_config(scale: Scale, data: str, backbone: str) -> RunConfig:
    """What all rows of a table have in common."""
    known: Mapping[str, Any] = _FULL_DATA if scale == "full" else LAPTOP_DATA
    if data not in known:
        raise BadData(f"{data}: not a dataset of the {scale} scale; use one of {', '.join(known)}")
    start = RunConfig(
        {"source": data, "validation": 0.2}, model=backbone, loss={"parameters": "given"}
    )
    if scale == "laptop":
        return start.replace(**merged(_LAPTOP, LAPTOP_DATA[data]))
    changes = merged(_FULL, {"training": _FULL_DATA[data]})
    drop = _DROPS.get(backbone, _DROP) * _FULL_DATA[data]["steps"] // _OF_STEPS
    changes["optimizer"]["drop_at"] = drop
    if backbone == "resnet50" and data in ("sop", "inshop"):
        changes["training"]["classes_per_batch"] = 20
    return start.replace(**changes)


def row_config(
    row: Row, scale: Scale, settings: Mapping[str, Any] | None = None, seed: int = 0
) -> RunConfig:
    """The config of a row; `settings` change it further, by flat names as `--set` has them."""
    config = base_config(scale, row.data, row.backbone)
    if row.labels == "none":
        config = config.replace(**_unlabeled(row.data))
    config = config.replace(**row.changes)
    if scale == "laptop":
        config = config.replace(**_LAPTOP_LOSSES.get(config.loss.name, {}))
    config = config.replace(model={"dim": row.dim}, training={"seed": seed})
    return with_settings(config, settings or {})


def _unlabeled(data: str) -> dict[str, dict[str, Any]]:
    if data not in _CLUSTERS:
        raise BadData(f"{data}: no number of clusters is known for it")
    return {
        # Nothing is chosen by held-out classes, so none are held out.
        "data": {"labels": "none", "validation": 0.0},
        "pseudo_labels": {"clusters": _CLUSTERS[data]},
        "training": {"validate_every": 0},
    }


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """A config with some settings replaced; what its loss refuses is refused here.

    A key is a field such as "steps", "section.field", or an option of the config's loss.
    """
    for key, value in settings.items():
        section, field = _place(config, key)
        config = config.replace(**{section: {field: value}})
    if settings and config.loss.parameters == "given":  # else the images tell what is missing
        try:
            build_run_loss(config, 3)
        except (TypeError, ValueError, BadData) as error:
            given = " ".join(f"{key}={value}" for key, value in settings.items())
            raise BadData(f"--set {given}: {error}") from None
    return config


def _place(config: RunConfig, key: str) -> tuple[str, str]:
    """The section and the field, or the option of the loss, that a key names."""
    if key in FLAT_KEYS:
        return FLAT_KEYS[key]
    section, dot, field = key.partition(".")
    if dot and section in SECTIONS:
        return section, field
    options = {*inspect.signature(LOSSES[config.loss.name]).parameters, *_CONSTRAINT}
    if key in options or section == "ratio":
        return "loss", key
    near = difflib.get_close_matches(key, sorted(FLAT_KEYS.keys() | options), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "leave rows without it out by --only"
    raise BadData(f"--set {key}: neither a setting nor an option of {config.loss.name}; {hint}")
