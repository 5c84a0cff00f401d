"""A row of a table: what our code does for one published row, as changes of a scale's recipe."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

__all__ = ["BACKBONE_NAMES", "DATA_NAMES", "Choice", "Key", "Row", "Table", "cbml_changes"]

# backbone, method, dimension and picture set as published.csv writes them
Key = tuple[str, str, str, str]
Choice = Literal["paper", "authors", "from-data"]

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


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row for one picture set.

    Args:
        method: its name in our tables.
        changes: of the scale's recipe, as "key=value".
        data: name of the picture set.
        backbone: of the paper; the laptop scale has its own.
        dim: of the embedding.
        published: where published.csv has its numbers; None where the paper has no such row.
        published_train: the same for scores on the training classes.
        scored: the splits that are scored.
        labels: "given", or "pseudo" where they are found by clustering.
        tuned_as: method of a row whose trials choose the learning rate, in the same table or in the
            loss ablation, where this one had none; that of the table when None.
    """

    method: str
    changes: tuple[str, ...]
    data: str = "cub"
    backbone: str = "resnet50"
    dim: int = 512
    published: Key | None = None
    published_train: Key | None = None
    scored: tuple[str, ...] = ("test",)
    labels: Literal["given", "pseudo"] = "given"
    tuned_as: str | None = None

    def label(self, scale: str) -> str:
        """Its name beside other rows of a table.

        Args:
            scale: at the full scale backbone and pictures are part of the name.
        """
        size = "" if self.dim == 512 else f", {self.dim}-d"
        if scale == "laptop":
            return f"{self.method}{size}"
        return f"{BACKBONE_NAMES[self.backbone]} {self.method}{size}, {DATA_NAMES[self.data]}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper, or a study in its manner.

    Args:
        name: on the command line.
        title: one line.
        rows: what our code runs.
        published: its name in published.csv; None where the paper prints no numbers.
        metrics: the columns, as published.csv writes them.
        tuned_as: method of a row of the loss ablation whose trials choose the learning rate, for
            rows that had none and name no other.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    published: str | None = None
    metrics: tuple[str, ...] = ("R@1", "R@2", "R@4", "R@8")
    tuned_as: str | None = None

    def like(self, data: str) -> str:
        """The set of the table whose rows another set takes: its own, CUB's, or the first one's.

        Args:
            data: name of the picture set.
        """
        sets = list(dict.fromkeys(row.data for row in self.rows))
        return data if data in sets else "cub" if "cub" in sets else sets[0]

    def laptop_rows(self, data: str) -> list[Row]:
        """The rows at the laptop scale, where those that differ in the backbone alone are one row.

        Args:
            data: name of the picture set; see `like`.
        """
        found: dict[str, Row] = {}
        for row in self.rows:
            if row.data == self.like(data):
                found.setdefault(row.label("laptop"), row)
        return [dataclasses.replace(row, data=data) for row in found.values()]


def cbml_changes(
    data: str,
    *,
    choice: Choice = "paper",
    constraint: bool = True,
    mining: bool = True,
    averaging: str = "log",
) -> tuple[str, ...]:
    """CBML with its parts on or off.

    Args:
        data: whose parameters; a set that the paper does not have takes those of CUB.
        choice: of the parameters: the paper's equations and numbers, what the authors' program
            computes, or scales from the similarities of the training pictures.
        constraint: whether the variance constraint is there.
        mining: whether only hard pairs count.
        averaging: f.
    """
    products = data in ("sop", "inshop")
    weight = (0.001 if products else 1.0) if constraint else 0.0
    common = (
        f"loss.averaging={averaging}",
        f"loss.mining_margin={0.1 if mining else None}",
        f"loss.variance_weight={weight}",
        "loss.target_mix=0.2",
    )
    if choice == "authors":
        return ("loss=cbml_authors", f"loss.dataset={'sop' if products else 'cub'}", *common)
    ratio = f"loss.ratio={'products' if products else 'fine_grained'}"
    if choice == "from-data":  # λ too follows from the data
        estimated = [change for change in common if "variance_weight" not in change or not weight]
        return ("loss=cbml", "parameters=from-data", *estimated)
    return ("loss=cbml", ratio, *common)
