"""The same numbers as scikit-learn and pytorch-metric-learning where nothing is tied."""

from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import average_precision_score
from sklearn.neighbors import NearestNeighbors

from cbml import evaluate

METRICS = ("precision_at_1", "r_precision", "mean_average_precision_at_r")


def classes(seed: int, size: int, number: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, number, size)
    rows = generator.normal(size=(number, 12))[labels] + 1.2 * generator.normal(size=(size, 12))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32), labels


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("with_gallery", [False, True])
def test_equal_to_pytorch_metric_learning(seed: int, with_gallery: bool) -> None:
    rows, labels = classes(seed, 150, 12)
    peer = AccuracyCalculator(include=METRICS, k="max_bin_count", device=torch.device("cpu"))
    query = torch.from_numpy(rows), torch.from_numpy(labels)
    if with_gallery:
        other, other_labels = classes(seed, 220, 12)
        gallery = torch.from_numpy(other), torch.from_numpy(other_labels)
        expected = peer.get_accuracy(*query, *gallery)
        scores = evaluate(
            rows, labels, gallery_embeddings=other, gallery_labels=other_labels, clustering=False
        )
    else:
        expected = peer.get_accuracy(*query)
        scores = evaluate(rows, labels, clustering=False)
    ours = tuple(scores.metrics[name] for name in ("recall@1", "r_precision", "map@r"))
    assert ours == pytest.approx(tuple(expected[name] for name in METRICS), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_neighbors_and_average_precision_of_scikit_learn(seed: int) -> None:
    """Cut after R places, scikit-learn's average precision divides by the hits instead of by R."""
    rows, labels = classes(seed, 130, 9)
    scores = evaluate(rows, labels, clustering=False, recall_at=(1, 5))
    search = NearestNeighbors(n_neighbors=130, metric="cosine", algorithm="brute").fit(rows)
    distances, places = search.kneighbors(rows)
    hits_in_five = 0
    for i in range(130):
        others = places[i] != i
        hit = labels[places[i][others]] == labels[i]
        similarity = 1.0 - distances[i][others]
        hits_in_five += bool(hit[:5].any())
        r = int(hit.sum())
        expected = 0.0
        if hit[:r].any():
            expected = average_precision_score(hit[:r], similarity[:r]) * hit[:r].sum() / r
        assert scores.per_query["map@r"][i] == pytest.approx(expected, abs=1e-9)
    assert scores.metrics["recall@5"] == pytest.approx(hits_in_five / 130)
