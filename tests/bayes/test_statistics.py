"""Exact statistics of all pairs against plain loops, and what follows from them."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from cbml import CBMLLoss, LinearRatio, PairStatistics, QuadraticRatio
from cbml.bayes import pairs
from cbml.errors import BadData
from cbml.losses import build_loss
from cbml.query_gallery import QueryGallery
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


# More images than dimensions and the other way round: both forms of the sums of squares.
@pytest.mark.parametrize("dim", [1, 2, 5, 40])
@pytest.mark.parametrize("seed", range(8))
def test_moments_are_those_of_all_pairs(seed: int, dim: int) -> None:
    rows, labels = drawn(seed, dim=dim, images=8 + 5 * seed, classes=2 + seed)
    found = PairStatistics.of(rows, labels)
    check(found, *oracle.similarities(rows.tolist(), labels.tolist()))


@pytest.mark.parametrize("dim", [2, 40])
@pytest.mark.parametrize("seed", range(5))
def test_queries_and_gallery(seed: int, dim: int) -> None:
    rows, labels = drawn(seed, dim=dim)
    others, other_labels = drawn(seed + 90, dim=dim, images=11, classes=6)
    both = QueryGallery.of(rows, labels, gallery_embeddings=others, gallery_labels=other_labels)
    found = PairStatistics.of(both)
    lists = (part.tolist() for part in (rows, labels, others, other_labels))
    check(found, *oracle.similarities(*lists))


@pytest.mark.parametrize("dim", [2, 40])
def test_blocks_change_nothing(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = drawn(3, dim=dim, images=50)
    whole = PairStatistics.of(rows, labels)
    monkeypatch.setattr(pairs, "BLOCK", 7)
    parts = PairStatistics.of(rows, labels)
    assert dataclasses.astuple(parts) == pytest.approx(dataclasses.astuple(whole), abs=1e-12)


def test_duplicates_are_pairs_and_a_image_is_none_with_itself() -> None:
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
    [([0, 1, 2], "no two images share a class"), ([4, 4, 4], "all images are of one class")],
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
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"embeddings": np.ones((3, 2)), "labels": [0, 0, 1], **arguments}
    with pytest.raises(ValueError, match=words):
        PairStatistics.of(given["embeddings"], given["labels"])


def test_a_misspelled_exponent_is_refused() -> None:
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
    assert scales == pytest.approx((0.5 / math.log(9), 0.1 / math.log(9)))
    centers = (loss.ratio.positive_center, loss.ratio.negative_center)
    assert centers == pytest.approx((1.0, 0.4))
    assert loss.positive_weight == pytest.approx(5.0)
    assert (loss.delta, loss.target_mix, loss.variance_reduction) == ("mean", 0.2, "mean")
    assert loss.variance_weight == pytest.approx(0.5 / 0.1**2)
    assert loss.mining_margin == 0.1, "31 classes are few"
    quadratic = STATISTICS.suggest_loss("quadratic")
    assert quadratic.ratio == QuadraticRatio(
        positive_mean=0.7, positive_std=0.15, negative_mean=0.3, negative_std=0.1
    )
    assert (quadratic.delta, quadratic.positive_weight) == ("derived", 1.0)


# Means and spreads of starts that separate their classes by 0.05 to 9 deviations.
STARTS = [
    (0.534, 0.115, 0.486, 0.110),
    (0.18, 0.14, 0.13, 0.13),
    (0.57, 0.15, 0.32, 0.13),
    (0.90, 0.08, 0.10, 0.09),
    (0.972, 0.04, 0.970, 0.04),
]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("positives", "negatives"), [(1, 1), (3, 116), (7, 112)])
def test_the_suggested_loss_holds_a_collapsed_batch_below_one(
    start: tuple[float, float, float, float], positives: int, negatives: int
) -> None:
    numbers = dict(
        zip(("positive_mean", "positive_std", "negative_mean", "negative_std"), start, strict=True)
    )
    options = dataclasses.replace(STATISTICS, **numbers).loss_options()
    ratio = {name.removeprefix("ratio."): value for name, value in options.items()}
    omega = options["positive_weight"]
    up = (positives, omega, ratio["positive_center"], ratio["positive_scale"])
    down = (negatives, ratio["negative_center"], ratio["negative_scale"])
    level = max(0.5, (start[0] + start[2]) / 2)
    spread = min(start[3], (1 - level) / 2)
    assert oracle.pull(level, *up) == pytest.approx(oracle.push(level, *down))
    assert oracle.push(0.999, *down) > oracle.pull(0.999, *up), "nothing holds it below one"
    assert oracle.push(level - 0.1, *down) < oracle.pull(level - 0.1, *up)
    assert oracle.push(level, *down) * down[-1] == pytest.approx(0.9)
    assert oracle.push(level - spread, *down) * down[-1] == pytest.approx(0.5)
    assert oracle.pull(1.0, *up) * down[-1] == pytest.approx(0.5)


def test_a_start_that_hardly_separates_gives_no_flat_loss() -> None:
    """gap/σ² made scales of 0.28 and 0.25 of these numbers, and embeddings became one point."""
    facts = PairStatistics(
        positive_mean=0.534,
        positive_std=0.115,
        negative_mean=0.486,
        negative_std=0.110,
        positive_pairs=300,
        negative_pairs=9000,
    )
    found = facts.loss_ratio()
    assert (found.positive_center, found.negative_center) == pytest.approx((1.0, 0.4))
    assert found.positive_scale == pytest.approx(0.2230, abs=1e-4)
    assert found.negative_scale == pytest.approx(0.0501, abs=1e-4)


def test_training_from_a_start_that_hardly_separates_does_not_collapse() -> None:
    """With the likelihood ratio of the start all similarities end near one."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(20).repeat_interleave(8)
    centers = torch.randn(20, 64, generator=generator)
    rows = 0.8 + 0.35 * centers[labels] + torch.randn(160, 64, generator=generator)
    start = torch.randn(32, 64, generator=generator) / 8
    facts = PairStatistics.of(rows @ start.T, labels)
    assert facts.positive_mean - facts.negative_mean < 0.6 * facts.negative_std
    of_the_start = CBMLLoss(
        ratio=facts.ratio("linear"),
        delta="derived",
        mining_margin=None,
        variance_weight=0.5 / facts.negative_std**2,
    )
    before = separation(facts)
    collapsed = trained(of_the_start, start, rows, labels)
    assert collapsed.negative_mean > 0.95, "the case is no longer the one that went wrong"
    learned = trained(facts.suggest_loss(), start, rows, labels)
    assert learned.negative_mean < 0.7
    assert separation(learned) > 3 * max(before, separation(collapsed))


def separation(facts: PairStatistics) -> float:
    return (facts.positive_mean - facts.negative_mean) / math.hypot(
        facts.positive_std, facts.negative_std
    )


def trained(loss: CBMLLoss, start: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> Any:
    """Statistics of the pairs after a linear layer has learned for a hundred steps."""
    layer = torch.nn.Linear(64, 32)
    with torch.no_grad():
        layer.weight.copy_(start)
        layer.bias.zero_()
    optimizer = torch.optim.Adam(layer.parameters(), lr=5e-3)
    for _ in range(100):
        optimizer.zero_grad()
        loss(layer(rows), labels).backward()
        optimizer.step()
    return PairStatistics.of(layer(rows).detach(), labels)


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
