"""The rows of studies of one option (averaging, size, λ, γ, batch size) and of the figures."""

from typing import Any

from cbml.experiments.rows import (
    BACKBONE_NAMES,
    DATA_NAMES,
    Changes,
    Key,
    Row,
    Table,
    cbml_changes,
    merged,
    published_keys,
)

# The row of the loss ablation that is the paper's method: studies of it take its learning rate.
WHOLE = "CBML +MVC +mining"
# Rows of the loss ablation by the method's printed name: their trials serve other tables too.
_TUNED_AS = {"MS": "MS", "ProxyNCA": "ProxyNCA", "Proxy-Anchor": "Proxy-Anchor", "CBML": WHOLE}
_BACKBONES = {printed: name for name, printed in BACKBONE_NAMES.items()}
DATA_OF = {printed: name for name, printed in DATA_NAMES.items()}

_AVERAGING = {"CBML-const": "const", "CBML-sqrt": "sqrt", "CBML(log)": "log"}
_LAMBDAS = (0.0, 0.1, 1.0, 2.0)
_GAMMAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_BATCHES = (30, 80, 100, 200)
_SAMPLES = 5  # divides all of these batch sizes
_ALL_METRICS = ("R@1", "R@2", "R@4", "R@8", "R@10", "R@20", "R@30", "R@100", "R@1000")


def published_row(key: Key, changes: Changes, *, pretrained: bool = True, **fields: Any) -> Row:
    """A row of ours for a published one; trials of a pretrained network say nothing of others."""
    backbone, method, dim, data = key
    return Row(
        method=method,
        changes=changes,
        data=DATA_OF[data],
        backbone=_BACKBONES[backbone],
        dim=int(dim or 512),
        published=key,
        tuned_as=_TUNED_AS.get(method) if pretrained else None,
        **fields,
    )


def _averaging() -> tuple[Row, ...]:
    return tuple(
        published_row(key, cbml_changes(DATA_OF[key[3]], averaging=_AVERAGING[key[1]]))
        for key in published_keys("averaging_ops")
    )


def _embedding_sizes() -> tuple[Row, ...]:
    keys = published_keys("embedding_dim")
    return tuple(published_row(key, cbml_changes(DATA_OF[key[3]])) for key in keys)


def _with_loss(**options: Any) -> dict[str, dict[str, Any]]:
    return merged(cbml_changes("cub"), {"loss": options})


def _lambdas() -> tuple[Row, ...]:
    rows = []
    for weight in _LAMBDAS:
        key = ("ResNet-50", f"CBML(lambda={weight})", "512")
        rows.append(
            Row(
                method=f"CBML λ={weight}",
                changes=_with_loss(variance_weight=weight),
                published=(*key, "CUB-test"),
                published_train=(*key, "CUB-train"),
                scored=("train", "test"),
            )
        )
    return tuple(rows)


def _gammas() -> tuple[Row, ...]:
    return tuple(
        Row(method=f"CBML γ={mix}", changes=_with_loss(target_mix=mix), backbone=backbone)
        for backbone in BACKBONE_NAMES
        for mix in _GAMMAS
    )


def _batch_sizes() -> tuple[Row, ...]:
    rows = []
    for size in _BATCHES:
        batch = {"samples_per_class": _SAMPLES, "classes_per_batch": size // _SAMPLES}
        changes = merged(cbml_changes("cub"), {"training": batch})
        rows.append(Row(method=f"CBML batch {size}", changes=changes))
    return tuple(rows)


def _gap_rows() -> tuple[Row, ...]:
    losses: dict[str, Any] = {
        "CE": {"loss": {"name": "normalized_softmax"}},
        "ProxyNCA": {"loss": {"name": "proxy_nca"}},
        "MS": {"loss": {"name": "multi_similarity"}},
        "CBML": cbml_changes("cub"),
    }
    rows = []
    for method, changes in losses.items():
        unmined = cbml_changes("cub", mining=False) if method == "CBML" else changes
        common: dict[str, Any] = {
            "backbone": "googlenet",
            "scored": ("train", "test"),
            "tuned_as": _TUNED_AS.get(method),
        }
        rows.append(Row(method=method, changes=changes, **common))
        rows.append(
            Row(
                method=f"{method} without labels",
                changes=unmined,
                dim=128,
                labels="none",
                **common,
            )
        )
    return tuple(rows)


def _compared(*, unconstrained: bool) -> tuple[Row, ...]:
    """MS and CBML on each of the paper's datasets, and CBML without the constraint."""
    rows = []
    for data in ("cub", "cars", "sop", "inshop"):
        loss = {"loss": {"name": "multi_similarity"}}
        rows += [
            Row(method="MS", changes=loss, data=data, tuned_as="MS"),
            Row(method=WHOLE, changes=cbml_changes(data), data=data, family="CBML"),
        ]
        if unconstrained:
            changes = cbml_changes(data, constraint=False)
            rows.append(Row(method="CBML +mining", changes=changes, data=data, family="CBML"))
    return tuple(rows)


def _study(name: str, title: str, rows: tuple[Row, ...], **more: Any) -> Table:
    options: dict[str, Any] = {"metrics": ("R@1",)} | more
    return Table(name=name, title=title, rows=rows, tuned_as=WHOLE, **options)


STUDIES = (
    _study(
        "averaging",
        "Averaging operations: log, sqrt and const",
        _averaging(),
        metrics=_ALL_METRICS,
        published="averaging_ops",
    ),
    _study(
        "embedding-size",
        "Size of the embedding",
        _embedding_sizes(),
        metrics=_ALL_METRICS,
        published="embedding_dim",
    ),
    _study(
        "lambda",
        "Weight of the variance constraint, on training and unseen classes",
        _lambdas(),
        published="lambda",
    ),
    _study(
        "gamma",
        "Share of the positives in the constraint's target; a figure in the paper",
        _gammas(),
    ),
    _study(
        "batch-size",
        "Batch size with given labels; the paper has it for pseudo-labels",
        _batch_sizes(),
    ),
)

# Runs that a table has made already are used again.
FIGURE_TABLES = {
    table.name: table
    for table in (
        _study(
            "figure-gap",
            "Recall@1 on training and on unseen classes; CE is a normalized softmax",
            _gap_rows(),
        ),
        _study(
            "figure-similarity",
            "Similarities of pairs and their ratio functions",
            _compared(unconstrained=True),
        ),
        _study(
            "figure-terms",
            "Terms of the loss with λ = 0 and λ = 1",
            (
                Row(method="CBML λ=0", changes=_with_loss(variance_weight=0.0)),
                Row(method="CBML λ=1", changes=_with_loss(variance_weight=1.0)),
            ),
        ),
        _study("figure-gamma", "Recall@1 over γ", _gammas()),
        _study("figure-examples", "What two methods find", _compared(unconstrained=False)),
    )
}
