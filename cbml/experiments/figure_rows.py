"""The rows that figures need; runs that a table has made already are used again."""

from cbml.experiments.rows import Row, Table, cbml_changes
from cbml.experiments.studies import STUDIES

__all__ = ["EXAMPLES", "GAMMA", "GAP", "PSEUDO_MARK", "SIMILARITY", "TERMS"]

PSEUDO_MARK = " without labels"
_TUNED_AS = "CBML +MVC +mining"


def _gap_rows() -> tuple[Row, ...]:
    losses = {
        "CE": ("loss=normalized_softmax",),
        "ProxyNCA": ("loss=proxy_nca",),
        "MS": ("loss=multi_similarity",),
        "CBML": cbml_changes("cub"),
    }
    rows = []
    for method, changes in losses.items():
        tuned_as = _TUNED_AS if method == "CBML" else method
        common = {"backbone": "googlenet", "scored": ("train", "test"), "tuned_as": tuned_as}
        rows.append(Row(method=method, changes=changes, **common))  # type: ignore[arg-type]
        unmined = cbml_changes("cub", mining=False) if method == "CBML" else changes
        pseudo = {"dim": 128, "labels": "pseudo", **common}
        rows.append(Row(method=f"{method}{PSEUDO_MARK}", changes=unmined, **pseudo))  # type: ignore[arg-type]
    return tuple(rows)


def _trained(*, unconstrained: bool) -> tuple[Row, ...]:
    """MS and CBML on each of the paper's sets, and CBML without the constraint."""
    rows = []
    for data in ("cub", "cars", "sop", "inshop"):
        rows += [
            Row(method="MS", changes=("loss=multi_similarity",), data=data, tuned_as="MS"),
            Row(method=_TUNED_AS, changes=cbml_changes(data), data=data),
        ]
        if unconstrained:
            changes = cbml_changes(data, constraint=False)
            rows.append(Row(method="CBML +mining", changes=changes, data=data))
    return tuple(rows)


GAP = Table(
    name="figure-gap",
    title="Recall@1 on training and on unseen classes; CE is a normalised softmax",
    rows=_gap_rows(),
    metrics=("R@1",),
    tuned_as=_TUNED_AS,
)
SIMILARITY = Table(
    name="figure-similarity",
    title="Similarities of pairs and their ratio functions",
    rows=_trained(unconstrained=True),
    metrics=("R@1",),
    tuned_as=_TUNED_AS,
)
TERMS = Table(
    name="figure-terms",
    title="Terms of the loss with λ = 0 and λ = 1",
    rows=(
        Row(method="CBML λ=0", changes=(*cbml_changes("cub"), "loss.variance_weight=0.0")),
        Row(method="CBML λ=1", changes=(*cbml_changes("cub"), "loss.variance_weight=1.0")),
    ),
    metrics=("R@1",),
    tuned_as=_TUNED_AS,
)
GAMMA = Table(
    name="figure-gamma",
    title="Recall@1 over γ",
    rows=next(table for table in STUDIES if table.name == "gamma").rows,
    metrics=("R@1",),
    tuned_as=_TUNED_AS,
)
EXAMPLES = Table(
    name="figure-examples",
    title="What two methods find",
    rows=_trained(unconstrained=False),
    metrics=("R@1",),
    tuned_as=_TUNED_AS,
)
