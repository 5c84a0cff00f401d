"""The studies of one option: averaging, embedding size, λ, γ and batch size."""

from cbml.experiments.comparisons import row_of
from cbml.experiments.published import published_keys
from cbml.experiments.rows import BACKBONE_NAMES, DATA_NAMES, Row, Table, cbml_changes

__all__ = ["STUDIES"]

_DATA = {printed: name for name, printed in DATA_NAMES.items()}
_AVERAGING = {"CBML-const": "const", "CBML-sqrt": "sqrt", "CBML(log)": "log"}
_GAMMAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_BATCHES = (30, 80, 100, 200)
_PICTURES = 5  # divides all of these batch sizes
_TUNED_AS = "CBML +MVC +mining"
_ALL_METRICS = ("R@1", "R@2", "R@4", "R@8", "R@10", "R@20", "R@30", "R@100", "R@1000")


def _averaging() -> tuple[Row, ...]:
    return tuple(
        row_of(key, cbml_changes(_DATA[key[3]], averaging=_AVERAGING[key[1]]))
        for key in published_keys("averaging_ops")
    )


def _embedding_sizes() -> tuple[Row, ...]:
    keys = published_keys("embedding_dim")
    return tuple(row_of(key, cbml_changes(_DATA[key[3]])) for key in keys)


def _weights() -> tuple[Row, ...]:
    rows = []
    for key in published_keys("lambda"):
        backbone, method, dim, pictures = key
        if pictures == "CUB-train":  # the other line of the same run
            continue
        weight = method.removeprefix("CBML(lambda=").removesuffix(")")
        rows.append(
            Row(
                method=f"CBML λ={weight}",
                changes=(*cbml_changes("cub"), f"loss.variance_weight={weight}"),
                published=key,
                published_train=(backbone, method, dim, "CUB-train"),
                scored=("train", "test"),
            )
        )
    return tuple(rows)


def _mixes() -> tuple[Row, ...]:
    return tuple(
        Row(
            method=f"CBML γ={mix}",
            changes=(*cbml_changes("cub"), f"loss.target_mix={mix}"),
            backbone=backbone,
        )
        for backbone in BACKBONE_NAMES
        for mix in _GAMMAS
    )


def _batch_sizes() -> tuple[Row, ...]:
    return tuple(
        Row(
            method=f"CBML batch {batch}",
            changes=(
                *cbml_changes("cub"),
                f"pictures_per_class={_PICTURES}",
                f"classes_per_batch={batch // _PICTURES}",
            ),
        )
        for batch in _BATCHES
    )


STUDIES = (
    Table(
        name="averaging",
        title="Averaging operations: log, sqrt and const",
        published="averaging_ops",
        rows=_averaging(),
        metrics=_ALL_METRICS,
        tuned_as=_TUNED_AS,
    ),
    Table(
        name="embedding-size",
        title="Size of the embedding",
        published="embedding_dim",
        rows=_embedding_sizes(),
        metrics=_ALL_METRICS,
        tuned_as=_TUNED_AS,
    ),
    Table(
        name="lambda",
        title="Weight of the variance constraint, on training and unseen classes",
        published="lambda",
        rows=_weights(),
        metrics=("R@1",),
        tuned_as=_TUNED_AS,
    ),
    Table(
        name="gamma",
        title="Share of the positives in the constraint's target; a figure in the paper",
        rows=_mixes(),
        metrics=("R@1",),
        tuned_as=_TUNED_AS,
    ),
    Table(
        name="batch-size",
        title="Batch size with given labels; the paper has it for pseudo-labels",
        rows=_batch_sizes(),
        metrics=("R@1",),
        tuned_as=_TUNED_AS,
    ),
)
