"""NMI and AMI against their literal formulas and scikit-learn."""

import random

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from cbml import evaluate
from cbml.evaluation import KMeansOptions, agreement
from cbml.index import kmeans
from tests.oracles import retrieval as literal


def groupings(chance: random.Random) -> tuple[list[int], list[int]]:
    size = chance.randint(1, 25)
    first = [chance.randrange(chance.randint(1, 8)) for _ in range(size)]
    kind = chance.randrange(5)
    if kind == 0:
        second = [7 - one for one in first]
    elif kind == 1:
        second = list(range(size))
    elif kind == 2:
        second = [0] * size
    else:
        second = [chance.randrange(chance.randint(1, 8)) for _ in range(size)]
    return (second, first) if chance.random() < 0.5 else (first, second)


def test_equal_to_the_formulas_and_to_scikit_learn() -> None:
    chance = random.Random(0)
    for _ in range(300):
        first, second = groupings(chance)
        nmi, ami = agreement(np.array(first), np.array(second))
        assert nmi == pytest.approx(literal.nmi(first, second), abs=1e-9)
        assert ami == pytest.approx(literal.ami(first, second), abs=1e-9)
        assert nmi == pytest.approx(normalized_mutual_info_score(first, second), abs=1e-9)
        assert ami == pytest.approx(adjusted_mutual_info_score(first, second), abs=1e-9)


def test_equal_to_scikit_learn_with_many_groups() -> None:
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 400, 2000)
    clusters = np.where(generator.random(2000) < 0.5, classes, generator.integers(0, 400, 2000))
    nmi, ami = agreement(classes, clusters)
    assert nmi == pytest.approx(normalized_mutual_info_score(classes, clusters), abs=1e-10)
    assert ami == pytest.approx(adjusted_mutual_info_score(classes, clusters), abs=1e-10)


def test_evaluate_scores_the_clusters_of_the_unit_rows() -> None:
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(12), 9)
    rows = generator.normal(size=(12, 16))[labels] + generator.normal(size=(108, 16))
    options = KMeansOptions(seed=5, iterations=7, attempts=3)
    scores = evaluate(rows, labels, kmeans_options=options)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    clusters = kmeans(unit, 12, seed=5, iterations=7, attempts=3)
    expected = normalized_mutual_info_score(labels, clusters.assignments)
    assert scores.metrics["nmi"] == pytest.approx(expected, abs=1e-9)
    recorded = (scores.kmeans_seed, scores.kmeans_iterations, scores.kmeans_attempts)
    assert recorded == (5, 7, 3)
    assert scores.classes == 12
    again = evaluate(rows, labels, kmeans_options=options)
    assert scores == again, "repeatable"
    assert evaluate(rows, labels, clustering=False).kmeans_attempts is None


def test_separated_classes_are_found_and_collapsed_ones_are_not() -> None:
    labels = np.repeat(np.arange(4), 10)
    apart = np.eye(4)[labels] + 0.01 * np.random.default_rng(0).normal(size=(40, 4))
    scores = evaluate(apart, labels, kmeans_options=KMeansOptions(seed=1))
    assert scores.metrics["recall@1"] == scores.metrics["map@r"] == 1.0
    options = [KMeansOptions(seed=seed) for seed in range(10)]
    best = max(evaluate(apart, labels, kmeans_options=one).metrics["nmi"] for one in options)
    assert best == pytest.approx(1.0)
    together = evaluate(np.ones((40, 4)), labels)
    found = together.metrics["nmi"], together.metrics["ami"]
    assert found == pytest.approx((0.0, 0.0), abs=1e-12)
