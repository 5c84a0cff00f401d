"""Bad input gets one clear line that names the argument; good input comes in many forms."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cbml import evaluate
from cbml.errors import BadData
from cbml.evaluation import KMeansOptions

ROWS = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
LABELS = np.arange(30) % 6


def with_row(place: int, value: float) -> Any:
    rows = ROWS.copy()
    rows[place] = value
    return rows


Bad = tuple[type[Exception], str, Any, Any, dict[str, Any]]
EMBEDDINGS: dict[str, Bad] = {
    "no array": (TypeError, "^embeddings must be an array", [[1.0]], [0], {}),
    "integers": (TypeError, "^embeddings must hold floating", LABELS[:, None], LABELS, {}),
    "long double": (TypeError, "must hold floating", ROWS.astype(np.longdouble), LABELS, {}),
    "one axis": (ValueError, r"^embeddings .*shape.* got \(30,\)", ROWS[:, 0], LABELS, {}),
    "no images": (ValueError, r"^embeddings .*shape.*\(0, 5\)", ROWS[:0], [], {}),
    "no dimensions": (ValueError, r"shape .*\(30, 0\)", ROWS[:, :0], LABELS, {}),
    "NaN": (ValueError, "^embeddings .* 1 of 30 rows: 7$", with_row(7, np.nan), LABELS, {}),
    "infinity": (ValueError, "infinity in 1 of 30 rows: 29$", with_row(29, -np.inf), LABELS, {}),
    "zero": (ValueError, "only zeros, .* in 1 of 30 rows: 3$", with_row(3, 0.0), LABELS, {}),
    "many": (ValueError, "30 of 30 rows: 0, 1, .*9, ...$", ROWS * 0, LABELS, {}),
}
ONE_LABEL_SHORT = {"gallery_embeddings": ROWS, "gallery_labels": LABELS[1:]}
THE_REST: dict[str, Bad] = {
    "few labels": (ValueError, r"^labels must .*\(30,\).*\(29,\)", ROWS, LABELS[1:], {}),
    "label table": (ValueError, r"^labels must have shape", ROWS, LABELS[:, None], {}),
    "real labels": (TypeError, "^labels must be integers or strings", ROWS, LABELS / 2, {}),
    "all alone": (BadData, "none of the 30 queries has another", ROWS, np.arange(30), {}),
    "half": (ValueError, "belong together", ROWS, LABELS, {"gallery_labels": LABELS}),
    "other half": (ValueError, "belong together", ROWS, LABELS, {"gallery_embeddings": ROWS}),
    "gallery labels": (ValueError, "^gallery_labels must", ROWS, LABELS, ONE_LABEL_SHORT),
    "K zero": (ValueError, "^recall_at must be .* got 0$", ROWS, LABELS, {"recall_at": [0]}),
    "K real": (ValueError, "^recall_at .* got 1.5$", ROWS, LABELS, {"recall_at": [1.5]}),
    "no labels": (TypeError, "^labels are missing", ROWS, None, {}),
    "metric": (
        ValueError,
        "^metrics must be .* got 'recal@k'",
        ROWS,
        LABELS,
        {"metrics": ["recal@k"]},
    ),
    "no rounds": (
        ValueError,
        "^iterations must be",
        ROWS,
        LABELS,
        {"kmeans_options": KMeansOptions(iterations=0)},
    ),
}
GALLERIES: dict[str, tuple[type[Exception], str, Any, Any]] = {
    "NaN": (ValueError, "^gallery_embeddings holds NaN .*: 2$", with_row(2, np.nan), LABELS),
    "dimensions": (ValueError, "have 5 dimensions, gallery_embeddings 4", ROWS[:, :4], LABELS),
    "label kinds": (TypeError, "both be integers or both be strings", ROWS, ["a"] * 30),
}
BAD: dict[str, Bad] = {**EMBEDDINGS, **THE_REST}
for name, (error, message, rows, labels) in GALLERIES.items():
    other = {"gallery_embeddings": rows, "gallery_labels": labels}
    BAD[f"gallery {name}"] = (error, message, ROWS, LABELS, other)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name: str) -> None:
    error, message, rows, labels, options = BAD[name]
    with pytest.raises(error, match=message):
        evaluate(rows, labels, **options)


def forms() -> dict[str, tuple[Any, Any]]:
    """The same embeddings and labels as users may hold them."""
    names = [f"class {label}" for label in LABELS]
    return {
        "float64": (ROWS.astype(np.float64), LABELS.astype(np.uint8)),
        "columns first": (np.asfortranarray(ROWS), LABELS.tolist()),
        "backwards in memory": (ROWS[::-1].copy()[::-1], LABELS),
        "big endian": (ROWS.astype(">f4"), LABELS.astype(">i8")),
        "tensor": (torch.from_numpy(ROWS), torch.from_numpy(LABELS)),
        "with gradient": (torch.tensor(ROWS, requires_grad=True), torch.tensor(LABELS)),
        "names": (ROWS, names),
        "scaled": (ROWS * np.float32(2.0**100), LABELS),
        "tiny": (ROWS.astype(np.float64) * 2.0**-1000, LABELS),
    }


@pytest.mark.parametrize("form", forms())
def test_every_form_gives_the_same_scores(form: str) -> None:
    expected = evaluate(ROWS, LABELS)
    assert evaluate(*forms()[form]) == expected


def test_read_only_files_and_half_precision(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert evaluate(mapped, LABELS) == evaluate(ROWS, LABELS)
    half = torch.from_numpy(ROWS).bfloat16()
    assert evaluate(half, LABELS) == evaluate(half.float(), LABELS)
    short = ROWS.astype(np.float16)
    assert evaluate(short, LABELS) == evaluate(short.astype(np.float32), LABELS)


def test_the_input_is_left_alone() -> None:
    rows, labels = ROWS.copy(), LABELS.copy()
    evaluate(rows, labels)
    assert np.array_equal(rows, ROWS)
    assert np.array_equal(labels, LABELS)


def test_the_dictionary_is_plain_json() -> None:
    scores = evaluate(ROWS, LABELS, recall_at=np.array([1, 4]))
    plain = json.loads(json.dumps(scores.as_dict(), allow_nan=False))
    assert plain["metrics"] == scores.metrics
    assert {"recall@1", "recall@4", "mrr", "map@r", "nmi"} <= set(plain["metrics"])
    assert plain["kmeans_seed"] == 0
    assert plain["kmeans_iterations"] == 20
    assert "first_hits" not in plain
    assert not {"labels", "per_query"} & set(plain)
    assert "nmi" not in evaluate(ROWS, LABELS, clustering=False).metrics


def test_a_misspelled_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="recal_at"):
        evaluate(ROWS, LABELS, recal_at=[1])  # type: ignore[call-arg]
