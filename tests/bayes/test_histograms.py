"""Histograms of all pairs by blocks, their Gaussians, and the monotone curve."""

import numpy as np
import pytest

from cbml.bayes import PairHistogram, PairStatistics, pairs
from cbml.bayes.calibration import GROUPS, MonotoneCurve
from cbml.query_gallery import QueryGallery
from tests.bayes.cases import drawn
from tests.oracles import bayes as oracle


def counted(values: list[float], bins: int) -> list[int]:
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, max(0, int((value + 1) / 2 * bins)))] += 1
    return counts


@pytest.mark.parametrize("block", [1, 60, 2**22])
@pytest.mark.parametrize("gallery", [False, True])
def test_every_pair_is_counted_once(
    block: int, gallery: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "BLOCK_SIZE", block)
    for seed in range(4):
        rows, labels = drawn(seed, images=30 + seed)
        others, other_labels = drawn(seed + 7, images=17, classes=6)
        lists = [part.tolist() for part in (rows, labels, others, other_labels)]
        positive, negative = oracle.similarities(*(lists if gallery else lists[:2]))
        both = QueryGallery.of(
            rows,
            labels,
            gallery_embeddings=others if gallery else None,
            gallery_labels=other_labels if gallery else None,
        )
        found = PairHistogram.of(both, bins=10)
        assert found.positive.tolist() == counted(positive, 10)
        assert found.negative.tolist() == counted(negative, 10)


def test_coarser_steps_hold_the_same_pairs() -> None:
    fine = PairHistogram.of(*drawn(1, images=60))
    coarse = fine.coarser(20)
    assert coarse.positive.tolist() == fine.positive.reshape(20, 100).sum(axis=1).tolist()
    assert (coarse.negative.sum(), len(coarse.edges)) == (fine.negative.sum(), 21)


@pytest.mark.parametrize("bins", [0, -3])
def test_steps_that_cannot_be_are_refused(bins: int) -> None:
    with pytest.raises(ValueError, match=f"bins must be at least 1, got {bins}"):
        PairHistogram.of(*drawn(1), bins=bins)
    fine = PairHistogram.of(*drawn(1), bins=30)
    for wrong in (7, bins):
        with pytest.raises(ValueError, match=f"bins must divide the 30 steps .* got {wrong}"):
            fine.coarser(wrong)


@pytest.mark.parametrize("positive", [True, False])
def test_distance_to_the_gaussian(positive: bool) -> None:
    rows, labels = drawn(2, images=50, dim=6)
    statistics = PairStatistics.of(rows, labels)
    kind = "positive" if positive else "negative"
    moments = getattr(statistics, f"{kind}_mean"), getattr(statistics, f"{kind}_std")
    values = oracle.similarities(rows.tolist(), labels.tolist())[0 if positive else 1]
    found = PairHistogram.of(rows, labels, bins=20000).gaussian_fit(*moments, positive=positive)
    # Steps are finer than most gaps between values; the gap itself is one value at most.
    exact = oracle.kolmogorov(values, *moments)
    assert found.distance == pytest.approx(exact, abs=2.0 / len(values) + 1e-3)
    mean = oracle.mean([np.log(oracle.gaussian(value, *moments)) for value in values])
    assert found.log_likelihood == pytest.approx(mean, abs=1e-4)
    assert found.best_log_likelihood > found.log_likelihood


def test_gaussian_data_fit_gaussians() -> None:
    values = np.random.default_rng(0).normal(0.2, 0.1, 200_000)
    counts = np.histogram(values, np.linspace(-1, 1, 2001))[0]
    fit = PairHistogram(counts, counts).gaussian_fit(0.2, 0.1, positive=True)
    assert fit.distance < 0.01
    assert fit.best_log_likelihood == pytest.approx(fit.log_likelihood, abs=0.02)
    wrong = PairHistogram(counts, counts).gaussian_fit(0.3, 0.1, positive=True)
    assert wrong.distance > 0.3


@pytest.mark.parametrize(("std", "least"), [(0.0, 0.49), (1e-5, 0.45), (1e-4, 0.25)])
def test_what_lies_within_one_step_is_not_called_gaussian(std: float, least: float) -> None:
    counts = np.zeros(2000, dtype=np.int64)
    counts[1500] = 1000  # from 0.5 to 0.501
    fit = PairHistogram(counts, counts).gaussian_fit(0.5005, std, positive=True)
    assert least < fit.distance <= 0.5
    assert fit.log_likelihood < fit.best_log_likelihood


@pytest.mark.parametrize("std", [0.0004, 0.001, 0.003, 0.1, 0.4])
def test_no_gaussian_is_likelier_than_the_histogram(std: float) -> None:
    values = np.random.default_rng(1).normal(0.1, std, 50_000).clip(-1, 1)
    counts = np.histogram(values, np.linspace(-1, 1, 2001))[0]
    found = PairHistogram(counts, counts).gaussian_fit(values.mean(), values.std(), positive=True)
    assert found.log_likelihood <= found.best_log_likelihood


def test_the_curve_is_the_isotonic_fit() -> None:
    random = np.random.default_rng(4)
    scores = np.sort(random.normal(size=60))
    positives = random.integers(0, 9, 60)
    negatives = random.integers(1, 9, 60)
    curve = MonotoneCurve.of(scores, positives, negatives)
    assert len(curve.scores) == 60 < GROUPS  # every place is a group of its own
    shares = (positives + 0.5) / (positives + negatives + 1.0)
    expected = oracle.never_falling(shares.tolist(), (positives + negatives).tolist())
    found = 1 / (1 + np.exp(-np.array(curve.log_odds)))
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    assert curve([-99.0, 99.0]).tolist() == [curve.log_odds[0], curve.log_odds[-1]]
    assert (np.diff(curve(np.linspace(-3, 3, 500))) >= 0).all()
