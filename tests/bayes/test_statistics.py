"""Exact statistics of all pairs against plain loops, and what follows from them."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from cbml import CBMLLoss, LinearRatio, PairStatistics, QuadraticRatio
from cbml.bayes import moments
from cbml.errors import BadData
from cbml.losses import build_loss
from tests.bayes.cases import drawn
from tests.oracles import bayes as oracle

STATISTICS = PairStatistics(
    positive_mean=0.7,
    positive_std=0.15,
    negative_mean=0.3,
    negative_std=0.1,
    positive_pairs=300,
    negative_pairs=9000,
)


def check(found: PairStatistics, positive: list[float], negative: list[float]) -> None:
    assert (found.positive_pairs, found.negative_pairs) == (len(positive), len(negative))
    expected = [oracle.mean(positive), oracle.mean(negative)]
    assert [found.positive_mean, found.negative_mean] == pytest.approx(expected, abs=1e-6)
    spreads = [oracle.std(positive), oracle.std(negative)]
    assert [found.positive_std, found.negative_std] == pytest.approx(spreads, abs=1e-6)


# More pictures than dimensions and the other way round: both forms of the sums of squares.
@pytest.mark.parametrize("dim", [1, 2, 5, 40])
@pytest.mark.parametrize("seed", range(8))
def test_moments_are_those_of_all_pairs(seed: int, dim: int) -> None:
    rows, labels = drawn(seed, dim=dim, pictures=8 + 5 * seed, classes=2 + seed)
    found = PairStatistics.of(rows, labels)
    check(found, *oracle.similarities(rows.tolist(), labels.tolist()))


@pytest.mark.parametrize("dim", [2, 40])
@pytest.mark.parametrize("seed", range(5))
def test_queries_and_gallery(seed: int, dim: int) -> None:
    rows, labels = drawn(seed, dim=dim)
    others, other_labels = drawn(seed + 90, dim=dim, pictures=11, classes=6)
    found = PairStatistics.of(rows, labels, gallery_embeddings=others, gallery_labels=other_labels)
    lists = (part.tolist() for part in (rows, labels, others, other_labels))
    check(found, *oracle.similarities(*lists))


@pytest.mark.parametrize("dim", [2, 40])
def test_blocks_change_nothing(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = drawn(3, dim=dim, pictures=50)
    whole = PairStatistics.of(rows, labels)
    monkeypatch.setattr(moments, "BLOCK", 7)
    parts = PairStatistics.of(rows, labels)
    assert dataclasses.astuple(parts) == pytest.approx(dataclasses.astuple(whole), abs=1e-12)


def test_duplicates_are_pairs_and_a_picture_is_none_with_itself() -> None:
    rows = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    found = PairStatistics.of(rows, ["a", "a", "b"])
    assert (found.positive_pairs, found.negative_pairs) == (1, 2)
    assert (found.positive_mean, found.negative_mean) == (1.0, 0.0)
    assert found.positive_std == found.negative_std == 0.0


def test_order_type_and_length_do_not_matter() -> None:
    rows, labels = drawn(5)
    order = np.random.default_rng(1).permutation(len(rows))
    first = dataclasses.astuple(PairStatistics.of(rows, labels))
    other = PairStatistics.of(torch.from_numpy(3 * rows[order]), [f"c{n}" for n in labels[order]])
    assert dataclasses.astuple(other) == pytest.approx(first, abs=1e-7)


@pytest.mark.parametrize(
    ("labels", "words"),
    [([0, 1, 2], "no two pictures share a class"), ([4, 4, 4], "all pictures are of one class")],
)
def test_sets_without_a_kind_of_pair_are_refused(labels: list[int], words: str) -> None:
    with pytest.raises(BadData, match=words):
        PairStatistics.of(np.eye(3), labels)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"embeddings": np.diag([1.0, 0.0, 1.0])}, "embeddings holds only zeros"),
        ({"embeddings": np.full((3, 2), np.nan)}, "embeddings holds NaN or infinity"),
        ({"labels": [0, 1]}, "labels must have shape"),
        ({"gallery_labels": [0]}, "belong together"),
        ({"gallery_embeddings": np.eye(3), "gallery_labels": [0, 1, 1]}, "2 dimensions"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"embeddings": np.ones((3, 2)), "labels": [0, 0, 1], **arguments}
    with pytest.raises(ValueError, match=words):
        PairStatistics.of(given.pop("embeddings"), given.pop("labels"), **given)


def test_a_misspelt_exponent_is_refused() -> None:
    for ask in (STATISTICS.ratio, STATISTICS.loss_options, STATISTICS.suggest_loss):
        with pytest.raises(ValueError, match=r"exponent must be one of .*, got 'quadratc'"):
            ask("quadratc")  # type: ignore[operator]


@pytest.mark.parametrize("odds", [-1.0, 0.0, math.nan, math.inf])
def test_odds_are_positive_numbers(odds: float) -> None:
    with pytest.raises(ValueError, match="prior_odds must be a finite number above zero"):
        STATISTICS.posterior(0.5, prior_odds=odds)


# The vertex of the exponent is at -0.02 here: below it the Gaussians cross again.
@pytest.mark.parametrize("s", [0.0, 0.1, 0.45, 0.62, 0.99])
def test_posteriors_are_those_of_the_paper(s: float) -> None:
    same, different = (0.7, 0.15), (0.3, 0.1)
    found = float(STATISTICS.posterior(s))
    assert found == pytest.approx(oracle.posterior_same(s, same, different, 300 / 9000), rel=1e-9)
    other = oracle.posterior_different(s, same, different, 300 / 9000)
    assert 1.0 - found == pytest.approx(other, rel=1e-6)
    balanced = float(STATISTICS.posterior(s, prior_odds=1.0))
    assert balanced == pytest.approx(oracle.posterior_same(s, same, different, 1.0), rel=1e-9)


@pytest.mark.parametrize("spreads", [(0.15, 0.1), (0.1, 0.15), (0.1, 0.1), (0.02, 0.3)])
def test_more_similar_is_never_less_probable(spreads: tuple[float, float]) -> None:
    """The wider Gaussian is above the other in both tails; a similarity that low tells nothing."""
    facts = dataclasses.replace(STATISTICS, positive_std=spreads[0], negative_std=spreads[1])
    ladder = facts.posterior(np.linspace(-1.0, 1.0, 500), prior_odds=1.0)
    assert (np.diff(ladder) >= 0.0).all()
    assert ladder[0] < 0.01 < 0.9 < ladder[-1]


def test_posterior_keeps_shapes_and_far_similarities_finite() -> None:
    sharp = dataclasses.replace(STATISTICS, positive_std=1e-4, negative_std=1e-4)
    values = sharp.posterior(np.array([[-1.0, 0.5], [0.51, 1.0]]))
    assert values.tolist() == [[0.0, values[0, 1]], [1.0, 1.0]]


def test_linear_ratio_is_exact_for_equal_spreads() -> None:
    equal = dataclasses.replace(STATISTICS, positive_std=0.2, negative_std=0.2)
    linear, quadratic = equal.ratio("linear"), equal.ratio("quadratic")
    assert tuple(linear.negative) == pytest.approx(tuple(quadratic.negative), abs=1e-9)
    assert tuple(linear.positive) == pytest.approx(tuple(quadratic.positive), abs=1e-9)


def test_the_suggested_loss_follows_from_the_data() -> None:
    loss = STATISTICS.suggest_loss()
    assert isinstance(loss, CBMLLoss)
    assert isinstance(loss.ratio, LinearRatio)
    scales = (loss.ratio.positive_scale, loss.ratio.negative_scale)
    assert scales == pytest.approx((0.15**2 / 0.4, 0.1**2 / 0.4))
    assert loss.ratio.positive_center == loss.ratio.negative_center == pytest.approx(0.5)
    assert (loss.delta, loss.target_mix, loss.variance_reduction) == ("derived", 0.2, "mean")
    assert loss.variance_weight == pytest.approx(0.5 / 0.1**2)
    assert loss.mining_margin is None
    quadratic = STATISTICS.suggest_loss("quadratic").ratio
    assert quadratic == QuadraticRatio(
        positive_mean=0.7, positive_std=0.15, negative_mean=0.3, negative_std=0.1
    )


@pytest.mark.parametrize("exponent", ["linear", "quadratic"])
def test_options_build_the_suggested_loss(exponent: Any) -> None:
    record = json.loads(json.dumps(STATISTICS.loss_record(exponent)))
    built = build_loss("cbml", record["options"], classes=2, dim=2, seed=0)
    assert str(built) == str(STATISTICS.suggest_loss(exponent))
    assert PairStatistics(**record["statistics"]) == STATISTICS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positive_mean": 0.3}, "not more similar than negative ones"),
        ({"negative_mean": 0.9}, "do not tell the classes apart"),
        ({"positive_std": 0.0}, "all positive pairs are equally similar"),
        ({"negative_std": 0.0}, "all negative pairs are equally similar"),
        ({"positive_std": 3.8e-5}, r"positive pairs are nearly equally similar \(spread 3\.8e-05"),
        ({"negative_std": 3.8e-5}, "negative pairs are nearly equally similar"),
    ],
)
def test_no_loss_where_nothing_can_be_told_apart(changes: dict[str, float], words: str) -> None:
    with pytest.raises(BadData, match=words):
        dataclasses.replace(STATISTICS, **changes).suggest_loss()
