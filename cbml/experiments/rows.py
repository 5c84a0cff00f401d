"""Rows and tables: what our code runs for each published row, and the numbers of the paper.

published.csv.txt says where the published numbers come from.
"""

import csv
import dataclasses
import difflib
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cbml.data import DATASETS
from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.runs import FLAT_KEYS, SECTIONS, RunConfig, build_run_loss

Scale = Literal["full", "laptop"]
# backbone, method, dimension and dataset as published.csv writes them
Key = tuple[str, str, str, str]
# Section of a RunConfig -> field -> value, as `RunConfig.replace` takes them.
Changes = Mapping[str, Mapping[str, Any]]

BACKBONE_NAMES = {
    "googlenet": "GoogLeNet",
    "bn_inception": "BN-Inception",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
}
# Of the datasets that users bring; emoji come with pip.
DATA_NAMES = {name: spec.printed_name for name, spec in DATASETS.items() if spec.installed is None}

# Why the rows of a published method are not run.
PUBLISHED_ONLY = {
    "Gain": "the difference of two rows, not a method",
    "aISIF": "neither equations nor a program are public",
    "PSLR": "the announced program was never published, and no equations are public",
    "CE": "a classifier over raw features; ours is normalized",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row for one dataset.

    Args:
        method: Its name in our tables, unique among the rows of one dataset and backbone.
        changes: What it changes in the config of its scale.
        backbone: The paper's network; the laptop scale has its own.
        published: Where published.csv has its numbers; None where the paper has no such row.
        published_train: The same for scores on the training classes.
        scored: The splits that are scored.
        labels: "known", "none" where clusters take their place, "each" where every image is a
            class of its own.
        family: Rows of one family are the same loss with parts of it on or off; a row without
            trials takes the learning rate of its family. None for a family of its own.
        tuned_as: Row of the loss ablation whose trials choose the learning rate of this one if it
            had none; that of the table when None.
    """

    method: str
    changes: Changes = field(default_factory=dict)
    data: str = "cub"
    backbone: str = "resnet50"
    dim: int = 512
    published: Key | None = None
    published_train: Key | None = None
    scored: tuple[str, ...] = ("test",)
    labels: Literal["known", "none", "each"] = "known"
    family: str | None = None
    tuned_as: str | None = None

    def label(self, scale: Scale) -> str:
        """Its name beside other rows of a table; at the full scale with backbone and images."""
        size = "" if self.dim == 512 else f", {self.dim}-d"
        if scale == "laptop":
            return f"{self.method}{size}"
        return f"{BACKBONE_NAMES[self.backbone]} {self.method}{size}, {DATA_NAMES[self.data]}"

    def family_label(self, scale: Scale) -> str:
        """The label that a row of the whole family would have."""
        return dataclasses.replace(self, method=self.family or self.method).label(scale)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper, or a study in its manner.

    Args:
        published: Its name in published.csv; None where the paper prints no numbers.
        metrics: The columns, as published.csv writes them.
        tuned_as: Row of the loss ablation whose trials choose the learning rate, for rows that had
            none and name no other.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    published: str | None = None
    metrics: tuple[str, ...] = ("R@1", "R@2", "R@4", "R@8")
    tuned_as: str | None = None

    def like(self, data: str) -> str:
        """The dataset whose rows another one takes: its own, CUB's, or the first one's."""
        known = list(dict.fromkeys(row.data for row in self.rows))
        return data if data in known else "cub" if "cub" in known else known[0]

    def rows_for(self, scale: Scale, data: str | None) -> list[Row]:
        """The rows at a scale; at the laptop's, rows that differ in the backbone alone are one."""
        if scale == "full":
            return [row for row in self.rows if data in (None, row.data)]
        data = data or "emoji"
        found: dict[str, Row] = {}
        for row in self.rows:
            if row.data == self.like(data):
                found.setdefault(row.label("laptop"), row)
        return [dataclasses.replace(row, data=data) for row in found.values()]


def merged(*changes: Changes) -> dict[str, dict[str, Any]]:
    """Several changes as one; the later ones count."""
    result: dict[str, dict[str, Any]] = {}
    for change in changes:
        for section, fields in change.items():
            result[section] = {**result.get(section, {}), **fields}
    return result


def cbml_changes(
    data: str,
    *,
    constants: Literal["paper", "authors", "from-data"] = "paper",
    constraint: bool = True,
    mining: bool = True,
    averaging: str = "log",
) -> dict[str, dict[str, Any]]:
    """CBML with its parts on or off.

    The constants are those of the paper for `data` (those of CUB for a dataset that it does not
    have), those of the authors' program, or estimated from the training images.
    """
    products = data in ("sop", "inshop")
    weight = (0.001 if products else 1.0) if constraint else 0.0
    loss: dict[str, Any] = {
        "averaging": averaging,
        "mining_margin": 0.1 if mining else None,
        "variance_weight": weight,
        "target_mix": 0.2,
    }
    if constants == "authors":
        return {"loss": {"name": "cbml_authors", "dataset": "sop" if products else "cub", **loss}}
    if constants == "from-data":
        if constraint:  # λ too follows from the data
            del loss["variance_weight"]
        return {"loss": {"name": "cbml", "parameters": "from-data", **loss}}
    return {"loss": {"name": "cbml", "ratio": "products" if products else "fine_grained", **loss}}


@functools.cache
def published_scores() -> dict[str, dict[Key, dict[str, float]]]:
    """Table -> row -> metric -> percent, all in the order of the paper."""
    path = Path(__file__).with_name("published.csv")
    tables: dict[str, dict[Key, dict[str, float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = (line["backbone"], line["method"], line["dim"], line["dataset"])
            rows = tables.setdefault(line["table"], {})
            rows.setdefault(key, {})[line["metric"]] = float(line["value"])
    return tables


def published_keys(table: str) -> tuple[Key, ...]:
    """The rows of a table, as published.csv names it."""
    return tuple(published_scores()[table])


# The two scales of a row's config: the paper's, and one that a laptop finishes.
#
# Where the paper and the authors' program are silent (the schedules for Cars, SOP, In-Shop,
# ImageNet and for small embeddings), the numbers here are our decision.

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
    "training": {"checkpoint_every": 200, "choose_by": "recall@1"},
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
    "training": {
        "steps": 200,
        "validate_every": 100,
        "checkpoint_every": 100,
        "choose_by": "recall@1",
    },
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
# Where the authors' program differs from what a run has by default.
PAPER_RECIPE: dict[str, dict[str, Any]] = {
    "augmentation": {"min_area": 0.16},
    "model": {"test_crop": None},
    "optimizer": {"ema": 0.0},
    "loss": {"proxy_weight": 0.0},
}
# Options that any loss takes: of the variance constraint, and of proxies beside the pairs.
_COMMON = ("variance_weight", "target_mix", "variance_reduction", "proxy_weight")


def base_config(scale: Scale, data: str, backbone: str) -> RunConfig:
    """What all rows of a table have in common."""
    known: Mapping[str, Any] = _FULL_DATA if scale == "full" else LAPTOP_DATA
    if data not in known:
        raise BadData(f"{data}: not a dataset of the {scale} scale; use one of {', '.join(known)}")
    start = RunConfig(
        {"source": data, "validation": 0.2}, model=backbone, loss={"parameters": "given"}
    ).replace(**PAPER_RECIPE)
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
    if row.labels != "known":
        config = config.replace(**_unlabeled(row.data, row.labels))
    config = config.replace(**row.changes)
    if scale == "laptop":
        config = config.replace(**_LAPTOP_LOSSES.get(config.loss.name, {}))
    config = config.replace(model={"dim": row.dim}, training={"seed": seed})
    return with_settings(config, settings or {})


def _unlabeled(data: str, labels: Literal["none", "each"]) -> dict[str, dict[str, Any]]:
    changes: dict[str, dict[str, Any]] = {
        # Nothing is chosen by held-out classes, so none are held out.
        "data": {"labels": labels, "validation": 0.0},
        "training": {"validate_every": 0},
    }
    if labels == "none":
        if data not in _CLUSTERS:
            raise BadData(f"{data}: no number of clusters is known for it")
        changes["pseudo_labels"] = {"clusters": _CLUSTERS[data]}
    return changes


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """A config with some settings replaced; what its loss refuses is refused here.

    A key is a field such as "steps", "section.field", or an option of the config's loss.
    """
    for key, value in settings.items():
        section, field = _section_and_field(config, key)
        config = config.replace(**{section: {field: value}})
    if settings and config.loss.parameters == "given":  # else the images tell what is missing
        try:
            build_run_loss(config, 3)
        except (TypeError, ValueError, BadData) as error:
            given = " ".join(f"{key}={value}" for key, value in settings.items())
            raise BadData(f"--set {given}: {error}") from None
    return config


def _section_and_field(config: RunConfig, key: str) -> tuple[str, str]:
    """The section and the field, or the option of the loss, that a key names."""
    if key in FLAT_KEYS:
        return FLAT_KEYS[key]
    section, dot, field = key.partition(".")
    if dot and section in SECTIONS:
        return section, field
    known = LOSSES.get(config.loss.name)  # options of a loss of one's own: "loss.<option>"
    options = {*(inspect.signature(known).parameters if known else ()), *_COMMON}
    if key in options or section == "ratio":
        return "loss", key
    near = difflib.get_close_matches(key, sorted(FLAT_KEYS.keys() | options), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "leave rows without it out by --only"
    raise BadData(f"--set {key}: neither a setting nor an option of {config.loss.name}; {hint}")
