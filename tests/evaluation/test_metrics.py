"""A metric is one function and one line of a table; averages of single classes."""

import numpy as np
import pytest

from cbml import QueryGallery, evaluate
from cbml.evaluation import METRICS, Metric

ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.arange(40) ** 2 % 7


def test_a_new_metric_is_one_function_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def found_all(ranks: np.ndarray, positives: np.ndarray) -> np.ndarray:
        return (ranks <= positives[:, None]).sum(axis=1) == positives

    monkeypatch.setitem(METRICS, "found_all", Metric(found_all, "nearest"))
    monkeypatch.setitem(METRICS, "late@k", Metric(lambda ranks, _, k: ranks[:, 0] > k, "first hit"))
    monkeypatch.setitem(METRICS, "clusters", Metric(lambda _, found: len(set(found)), "clusters"))
    scores = evaluate(ROWS, LABELS, recall_at=(1, 4))
    assert scores.metrics["found_all"] == (scores.per_query["r_precision"] == 1.0).mean()
    assert scores.metrics["late@4"] == pytest.approx(1.0 - scores.metrics["recall@4"])
    assert scores.metrics["clusters"] == scores.classes
    assert list(evaluate(ROWS, LABELS, metrics=["found_all"]).metrics) == ["found_all"]


def test_averages_of_classes() -> None:
    names = np.array([f"class {label}" for label in LABELS])
    names[5] = "alone"
    scores = evaluate(ROWS, names, clustering=False)
    assert np.isnan(scores.per_query["recall@1"][5])
    assert scores.labels.tolist() == names.tolist()
    expected = {
        name: float(scores.per_query["recall@1"][names == name].mean())
        for name in sorted(set(names) - {"alone"})
    }
    assert scores.per_class("recall@1") == pytest.approx(expected)
    average = sum(expected.values()) / len(expected)
    assert scores.class_average("recall@1") == pytest.approx(average)
    assert scores.metrics["recall@1"] != pytest.approx(average)  # classes of several sizes


def test_queries_within_a_larger_gallery_leave_themselves_out() -> None:
    some = np.array([3, 17, 30])
    sides = QueryGallery.of(
        ROWS[some],
        LABELS[some],
        gallery_embeddings=ROWS,
        gallery_labels=LABELS,
        self_indices=some,
    )
    whole = evaluate(ROWS, LABELS, clustering=False)
    part = evaluate(sides, clustering=False)
    assert part.first_hits.tolist() == whole.first_hits[some].tolist()
    assert part.per_query["map@r"].tolist() == whole.per_query["map@r"][some].tolist()
    assert evaluate(
        ROWS[some], LABELS[some], gallery_embeddings=ROWS, gallery_labels=LABELS, clustering=False
    ).first_hits.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ([3, 17, 40], "indices into the 40 images"),
        ([3, 17, -2], "indices into the 40 images"),
        ([3, 17, 31], "query 2 has another label"),
        ([3, 17], "self_indices must have shape"),
    ],
)
def test_wrong_self_indices_are_refused(own: list[int], words: str) -> None:
    some = np.array([3, 17, 30])
    with pytest.raises(ValueError, match=words):
        QueryGallery.of(
            ROWS[some],
            LABELS[some],
            gallery_embeddings=ROWS,
            gallery_labels=LABELS,
            self_indices=own,
        )


def test_a_query_gallery_stands_alone() -> None:
    sides = QueryGallery.of(ROWS, LABELS)
    assert evaluate(sides) == evaluate(ROWS, LABELS)
    with pytest.raises(ValueError, match="give nothing beside it"):
        evaluate(sides, LABELS)
    with pytest.raises(ValueError, match="point into a gallery"):
        QueryGallery.of(ROWS, LABELS, self_indices=[0] * 40)
