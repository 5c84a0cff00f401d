"""Match probabilities of search results: calibrated on classes they have not seen."""

import contextlib
import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from cbml import MatchProbability, PairStatistics
from cbml.bayes import Reliability, analyze_set, check_posteriors, check_results
from cbml.bayes.neighbors import cohort_ranks, mean_of_cohort, ranks_to_fit
from cbml.errors import BadData
from tests.bayes.cases import Set, crowded, neighbors_of
from tests.oracles import bayes as oracle


@pytest.fixture(scope="module")
def fitted() -> MatchProbability:
    return MatchProbability.fit(*crowded(0))


@pytest.fixture(scope="module")
def unseen() -> Set:
    return crowded(1)


def unit(rows: Any) -> Any:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_reliability_is_that_of_plain_loops() -> None:
    random = np.random.default_rng(0)
    p = random.uniform(0.01, 0.99, 300)
    matches = random.uniform(size=300) < p**2
    found = Reliability.of(p, matches, ~matches)
    expected = oracle.calibration(p.tolist(), matches.tolist(), 10)
    assert (found.ece, found.brier, found.log_loss) == pytest.approx(expected, abs=1e-9)
    assert sum(found.counts) == 300
    twice = Reliability.of(p, 2 * matches, 2 * ~matches)
    assert (twice.ece, twice.brier) == pytest.approx((found.ece, found.brier))
    assert Reliability.of_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_certain_probabilities_have_a_finite_loss() -> None:
    found = Reliability.of([0.0, 1.0], [1, 0], [0, 1])
    assert (found.ece, found.brier) == (1.0, 1.0)
    assert math.isfinite(found.log_loss)
    with pytest.raises(ValueError, match="all zero"):
        Reliability.of([0.5], [0], [0])


def test_lists_leave_the_query_out_by_its_place() -> None:
    rows = unit(np.array([[1.0, 0], [1, 0], [1, 0.1], [0, 1], [1, 0]]))
    lists = neighbors_of(rows, 3)
    assert lists.similarities.shape == (5, 3)
    for query, neighbors in zip(lists.queries, lists.indices.tolist(), strict=True):
        assert query not in neighbors
    assert sorted(lists.indices[0].tolist()) == [1, 2, 4]  # true duplicates stay
    assert neighbors_of(rows, 99).similarities.shape == (5, 4)


def test_the_crowd_is_behind_what_can_be_right() -> None:
    assert cohort_ranks(np.full(50, 3), 1000) == (10, 20)
    assert cohort_ranks(np.full(50, 60), 1000) == (90, 100)
    assert cohort_ranks(np.full(4, 1), 7) == (3, 7)
    assert cohort_ranks(np.full(9, 50_000), 10**6) == (1000, 1010)
    lists = np.array([[0.9, 0.8, 0.4, 0.2], [0.9, 0.8, 0.4, -np.inf], [0.9, 0.8, *[-np.inf] * 2]])
    assert mean_of_cohort(lists, (2, 4), 0.77).ravel().tolist() == pytest.approx([0.3, 0.4, 0.77])


def test_where_it_says_so_it_is_so_on_unseen_classes(fitted: MatchProbability, unseen: Set) -> None:
    for count, check in check_results(fitted, *unseen).items():
        assert check.ece < (0.1 if count == 1 else 0.07), (count, check)
        sure = [
            (seen, number)
            for said, seen, number in zip(
                check.confidence, check.accuracy, check.counts, strict=True
            )
            if said > 0.85
        ]
        assert sum(number for _, number in sure) > 20
        right = sum(seen * number for seen, number in sure) / sum(number for _, number in sure)
        assert right > 0.8


def test_the_background_makes_the_difference(fitted: MatchProbability, unseen: Set) -> None:
    """Posteriors of pairs are calibrated for pairs, not for the first results of a search."""
    rows, labels = unseen
    statistics = PairStatistics.of(*crowded(0))
    lists = neighbors_of(rows, fitted.depth)
    right = lists.relevant(labels)[:, :1]
    pairs = Reliability.of(statistics.posterior(lists.similarities[:, :1]), right, ~right)
    results = Reliability.of(fitted.probability(lists.similarities)[:, :1], right, ~right)
    assert results.log_loss < 0.8 * pairs.log_loss
    assert results.ece < 0.5 * pairs.ece


def test_more_similar_is_more_probable(fitted: MatchProbability) -> None:
    ladder = np.linspace(1.0, 0.0, 60)
    said = fitted.probability(ladder)
    assert (np.diff(said) <= 1e-12).all()
    assert 0.0 <= said.min() < said.max() <= 1.0
    mixed = np.random.default_rng(0).permutation(60)
    assert fitted.probability(ladder[mixed]).tolist() == pytest.approx(said[mixed].tolist())


def test_filtered_results_keep_the_background_of_the_whole_list(fitted: MatchProbability) -> None:
    ladder = np.linspace(0.95, 0.3, 40)
    whole = fitted.probability(ladder)
    part = fitted.probability(ladder[[3, 7]], cohort_mean=fitted.cohort_mean(ladder))
    assert part.tolist() == pytest.approx(whole[[3, 7]].tolist())
    gaps = fitted.probability(np.array([[*ladder, -np.inf], [*ladder, 0.1]]))
    assert gaps[0].tolist() == pytest.approx([*whole.tolist(), 0.0])
    assert fitted.probability(0.9).shape == ()
    # As many queries as results, the backgrounds in a row: each is still that of its query.
    lists, around = np.tile(ladder[:2], (2, 1)), np.array([0.2, 0.7])
    said = fitted.probability(lists, cohort_mean=around)
    assert said.tolist() == fitted.probability(lists, cohort_mean=around[:, None]).tolist()
    assert (said[0] > said[1]).all()
    with pytest.raises(ValueError, match="reshape"):
        fitted.probability(lists, cohort_mean=[0.2, 0.7, 0.4])
    with pytest.raises(ValueError, match="NaN"):
        fitted.probability([0.5, math.nan])


def small_set(seed: int) -> Set:
    """A few images of a few classes, told apart well or hardly; some sets are full of copies."""
    random = np.random.default_rng(seed)
    classes, each, dim = (int(random.integers(*ends)) for ends in ((4, 13), (2, 9), (2, 17)))
    labels = np.repeat(np.arange(classes), each)
    noise = random.uniform(0.05, 1.5) * random.normal(size=(len(labels), dim))
    rows = random.normal(size=(classes, dim))[labels] + noise
    if seed % 5 == 0:
        rows[1::2] = rows[: 2 * (len(rows) // 2) : 2]
    return rows.astype(np.float32), labels


def fit_small_sets(seeds: range) -> int:
    """How many can be fitted; the others may only be refused because similarity tells nothing."""
    fitted = 0
    for seed in seeds:
        with contextlib.suppress(BadData):
            confidence = MatchProbability.fit(*small_set(seed)).probability([0.9, 0.1])
            assert 0.0 <= confidence[1] <= confidence[0] <= 1.0, seed
            fitted += 1
    return fitted


def test_small_sets_can_be_fitted_to() -> None:
    assert fit_small_sets(range(300, 350)) >= 48


@pytest.mark.slow
def test_500_small_sets_can_be_fitted_to() -> None:
    assert fit_small_sets(range(500)) >= 485


@pytest.mark.parametrize("copies", [30, 60, 100])
def test_a_set_with_many_identical_images_can_be_learned_from(copies: int) -> None:
    for seed in range(3):
        random = np.random.default_rng(seed)
        labels = np.repeat(np.arange(40), 6)
        rows = random.normal(size=(40, 8))[labels] + 0.6 * random.normal(size=(240, 8))
        rows[random.permutation(240)[:copies]] = random.normal(size=8)
        said = MatchProbability.fit(rows.astype(np.float32), labels).probability([0.9, 0.5])
        assert 0.0 < said[1] <= said[0] < 1.0


def test_ranks_to_fit_stand_for_the_whole_list() -> None:
    for depth in (3, 128, 129, 1010):
        ranks, counts = ranks_to_fit(depth)
        assert counts.sum() == depth
        assert len(ranks) <= 128
        assert (np.diff(ranks) > 0).all()
        assert ranks[-1] < depth
        # Each stands for the ranks around it.
        assert (ranks * counts).sum() == pytest.approx(depth * (depth - 1) / 2, rel=0.02)


def test_large_classes_take_no_more_memory() -> None:
    """Lists that reach behind classes of 2,000 images would fill 680 megabytes."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 2000)
    rows = random.normal(size=(4, 4))[labels] + random.normal(size=(8000, 4))
    tracemalloc.start()
    try:
        learned = MatchProbability.fit(rows.astype(np.float32), labels)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert learned.depth == 1010
    assert peak < 160e6


@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        (np.eye(4), [0, 1, 2, 3], "no two images share a class"),
        (np.eye(4), [0, 0, 0, 0], "at least 3 classes with two images or more, got 1"),
        (np.eye(1), [0], "a gallery needs at least two images"),
    ],
)
def test_too_little_to_learn_from(rows: Any, labels: list[int], words: str) -> None:
    with pytest.raises(BadData, match=words):
        MatchProbability.fit(rows, labels)


def test_similarity_that_tells_nothing_is_refused() -> None:
    labels = np.arange(240) // 6
    with pytest.raises(BadData, match="nothing to calibrate"):
        MatchProbability.fit(np.ones((240, 8)), labels)
    # The farthest image is the right one: similar images are always wrong.
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    rows[1::2] = -rows[::2]
    with pytest.raises(BadData, match="no relevant or no irrelevant"):
        MatchProbability.fit(rows, np.arange(200) // 2)


def test_pair_posteriors_are_checked_on_the_other_half_of_the_classes() -> None:
    checks = check_posteriors(*crowded(4))
    assert set(checks) == {"prior", "gaussian", "monotone"}
    # Few pairs are positive: saying the prior of each is calibrated as well, and tells nothing.
    assert all(check.ece < 0.02 for check in checks.values())
    losses = {name: check.log_loss for name, check in checks.items()}
    assert losses["monotone"] < losses["gaussian"] < 0.8 * losses["prior"]
    with pytest.raises(BadData, match="one class"):
        check_posteriors(np.eye(3), [1, 1, 1])


def test_an_analysis_is_plain_numbers() -> None:
    found = analyze_set(*crowded(5))
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert (plain["images"], plain["classes"]) == (2880, 480)
    assert sum(plain["histogram"]["positive"]) == plain["statistics"]["positive_pairs"]
    few = analyze_set(np.array([[1.0, 0], [1, 0.1], [0, 1]]), [0, 0, 1])
    assert few.posteriors == {}
