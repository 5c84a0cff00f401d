"""The tables of learning from pseudo-labels: no mining, 128 dimensions."""

from cbml.experiments.comparisons import row_of
from cbml.experiments.published import published_keys
from cbml.experiments.rows import DATA_NAMES, Row, Table, cbml_changes
from cbml.experiments.scales import SCRATCH

__all__ = ["PSEUDO_TABLES"]

_DATA = {printed: name for name, printed in DATA_NAMES.items()}
_TUNED_AS = "CBML +MVC +mining"
_PARTS = {  # constraint, mining
    "CBML(no MVC, no mining)": (False, False),
    "CBML+MVC": (True, False),
    "CBML+MVC+HardMining": (True, True),
}


def _rows(table: str, *changes: str) -> tuple[Row, ...]:
    rows = []
    for key in published_keys(table):
        if key[1] == "CBML":
            loss = cbml_changes(_DATA[key[3]], mining=False)
            rows.append(row_of(key, (*loss, *changes), pseudo=True))
    return tuple(rows)


def _components() -> tuple[Row, ...]:
    rows = []
    for key in published_keys("pseudo_components"):
        if key[1] in _PARTS:
            constraint, mining = _PARTS[key[1]]
            changes = cbml_changes("cub", constraint=constraint, mining=mining)
            rows.append(row_of(key, changes, pseudo=True))
    return tuple(rows)


def _batch_sizes() -> tuple[Row, ...]:
    rows = []
    for key in published_keys("pseudo_batch_size"):
        batch = key[1].removeprefix("CBML(batch=").removesuffix(")")
        changes = (*cbml_changes("cub", mining=False), f"batch_range={batch}")
        rows.append(row_of(key, (*changes, "pictures_per_class=5"), pseudo=True))
    return tuple(rows)


PSEUDO_TABLES = (
    Table(
        name="pseudo",
        title="Pseudo-labels, pretrained GoogLeNet",
        published="pseudo_tl1",
        rows=_rows("pseudo_tl1"),
        metrics=("R@1", "R@2", "R@4", "R@8", "R@10", "R@100"),
        tuned_as=_TUNED_AS,
    ),
    Table(
        name="pseudo-scratch",
        title="Pseudo-labels, ResNet-18 from random weights",
        published="pseudo_from_scratch",
        rows=_rows("pseudo_from_scratch", *SCRATCH),
        metrics=("R@1", "R@10", "R@100"),
    ),
    Table(
        name="pseudo-backbones",
        title="Pseudo-labels, three backbones",
        published="pseudo_backbones",
        rows=_rows("pseudo_backbones"),
        metrics=("R@1",),
        tuned_as=_TUNED_AS,
    ),
    Table(
        name="pseudo-components",
        title="Pseudo-labels, with and without the constraint and mining",
        published="pseudo_components",
        rows=_components(),
        tuned_as=_TUNED_AS,
    ),
    Table(
        name="pseudo-batch-size",
        title="Pseudo-labels, batch size",
        published="pseudo_batch_size",
        rows=_batch_sizes(),
        metrics=("R@1",),
        tuned_as=_TUNED_AS,
    ),
)
