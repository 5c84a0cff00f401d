"""Rows and tables: what our code runs for each published row, and the numbers of the paper.

published.csv.txt says where the published numbers come from.
"""

import csv
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
DATA_NAMES = {
    "cub": "CUB",
    "cars": "Cars",
    "sop": "SOP",
    "inshop": "In-Shop",
    "imagenet": "ImageNet-zero-shot",
}

# Why the rows of a published method are not run.
PUBLISHED_ONLY = {
    "Gain": "the difference of two rows, not a method",
    "RLL-(L,M,H)": "joins features of three depths; ours has one",
    "CE": "a classifier over raw features; ours is normalized",
    **dict.fromkeys(
        (
            *("A-BIER", "AND", "BIER", "CBSwR", "Contrastive+HORDE", "D & C"),
            *("DCML-MDW", "DRML-MDW", "DRML-PA", "DeML", "DeepCluster", "Divide-Conquer"),
            *("Examplar", "Fusing-Net", "HDC", "HDML", "ISIF", "LSCM-GNN", "MIC+Margin", "MOM"),
            *("NCE", "Ortho", "PA+DIML", "PADS", "PSLR"),
            *("Sharing-DML", "Smart Mining", "aISIF", "sSUML"),
        ),
        "the method is not among our losses",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row for one dataset.

    Args:
        method: Its name in our tables, unique among the rows of one dataset and backbone.
        changes: What it changes in the config of its scale.
        data: Name of the dataset.
        backbone: The paper's network; the laptop scale has its own.
        dim: Size of the embedding.
        published: Where published.csv has its numbers; None where the paper has no such row.
        published_train: The same for scores on the training classes.
        scored: The splits that are scored.
        labels: "known", or "none" where clusters take their place.
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
    labels: Literal["known", "none"] = "known"
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
        name: On the command line.
        title: One line.
        rows: What our code runs.
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
