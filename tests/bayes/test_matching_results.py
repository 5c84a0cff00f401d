"""What the result's own background and a ceiling add to match probabilities."""

from typing import Any

import numpy as np
import pytest

from cbml import MatchProbability
from cbml.bayes import Reliability, fitting
from cbml.bayes.calibration import Line, Odds
from cbml.bayes.neighbors import cohort_means
from tests.bayes.cases import Set, crowded, drawn, neighbors_of


def unit(rows: Any) -> Any:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def lopsided(seed: int) -> Set:
    """Half of the classes lie in one crowd, the others have room; some queries stand between."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(160), 6)
    room = np.where(np.arange(160) < 80, 0.25, 1.2)[:, None]
    centers = np.eye(12)[0] * (np.arange(160) < 80)[:, None] + room * random.normal(size=(160, 12))
    return (centers[labels] + 0.5 * random.normal(size=(960, 12))).astype(np.float32), labels


def sisters(seed: int) -> Set:
    """Every second class has a sister that looks exactly the same."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(160), 6)
    centers = random.normal(size=(160, 8))
    rows = centers[labels] + 0.5 * random.normal(size=(960, 8))
    same = np.flatnonzero(labels % 4 == 1)
    rows[same] = rows[same - 6]
    return rows.astype(np.float32), labels


def test_backgrounds_of_results_are_those_of_plain_loops() -> None:
    rows = unit(drawn(0)[0])
    places = np.array([[3, 5, -1], [5, 0, 23]])
    found = cohort_means(rows, places, (2, 5), 0.77)
    for place, mean in zip(places.ravel().tolist(), found.ravel().tolist(), strict=True):
        others = [float(rows[place] @ rows[other]) for other in range(24) if other != place]
        crowd = sorted(others, reverse=True)[2:5]
        assert mean == pytest.approx(0.77 if place < 0 else sum(crowd) / 3, abs=1e-5)


def test_a_result_in_a_crowd_is_less_probable() -> None:
    fitted = MatchProbability.fit(*lopsided(0))
    assert fitted.by_both is not None
    rows, labels = lopsided(1)
    lists = neighbors_of(rows, fitted.depth)
    right = lists.relevant(labels)
    around = fitted.result_cohort_mean(rows, lists.indices)
    without, known = (
        Reliability.of(
            fitted.probability(lists.similarities, result_cohort_mean=told), right, ~right
        )
        for told in (None, around)
    )
    assert known.log_loss < 0.98 * without.log_loss
    said = fitted.probability(
        np.full(5, 0.8), cohort_mean=[0.6], result_cohort_mean=np.linspace(0.3, 0.9, 5)
    )
    assert (np.diff(said) < 0.0).all()


def test_sisters_that_look_the_same_set_a_ceiling() -> None:
    fitted = MatchProbability.fit(*sisters(0))
    assert fitted.by_query.line.ceiling < 0.999
    assert MatchProbability.fit(*crowded(0)).by_query.line.ceiling == 1.0


@pytest.mark.parametrize("make", [lopsided, sisters, crowded])
def test_more_similar_is_never_less_probable(make: Any) -> None:
    fitted = MatchProbability.fit(*make(0))
    ladder = np.linspace(-1.0, 1.0, 200)
    for around in (None, np.full(200, 0.4), np.full(200, 0.9)):
        said = fitted.probability(ladder, cohort_mean=[0.5], result_cohort_mean=around)
        assert (np.diff(said) >= 0.0).all()
        assert said[0] < said[-1]


def test_a_line_is_its_sum() -> None:
    line = Line(3.0, -2.0, 0.5, -1.0, 0.8)
    assert line.score(0.7, 0.4, 0.2) == pytest.approx(3 * 0.7 - 2 * 0.4 + 0.5 - 0.2)
    assert line.score(0.9, 0.4, 0.2) == pytest.approx(3 * 0.8 - 2 * 0.4 + 0.5 - 0.2)
    assert Odds(line)([-np.inf], [0.4]).tolist() == [-np.inf]


def test_large_sets_look_up_only_some_results(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(rows: Any, places: Any, *others: Any) -> Any:
        asked.append(places.size)
        return cohort_means(rows, places, *others)

    monkeypatch.setattr(fitting, "cohort_means", counted)
    whole = MatchProbability.fit(*lopsided(0))
    monkeypatch.setattr(fitting, "RESULT_COHORTS", 900)
    part = MatchProbability.fit(*lopsided(0))
    assert asked[0] == 960 * fitting.FIRST_RESULTS
    assert 450 < asked[1] <= 900 + 20
    assert part.by_query == whole.by_query


def large_classes(spread: float) -> tuple[Any, Any]:
    """Classes of 60 images, each a cloud of its own size."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 60)
    sizes = random.uniform(0.4, 1.6, size=(12, 1))
    noise = spread * sizes[labels] * random.normal(size=(720, 16))
    return random.normal(size=(12, 16))[labels] + noise, labels


def test_the_first_ten_results_are_what_is_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = large_classes(1.6)

    def error_of_first_ten() -> float:
        fitted = MatchProbability.fit(rows, labels)
        found = neighbors_of(rows, fitted.depth)
        means = fitted.result_cohort_mean(rows, found.indices[:, :10])
        said = fitted.probability(
            found.similarities[:, :10],
            cohort_mean=fitted.cohort_mean(found.similarities),
            result_cohort_mean=means,
            own=True,
        )
        seen = found.relevant(labels)[:, :10]
        return Reliability.of(said, seen * 1.0, ~seen * 1.0).ece

    first = error_of_first_ten()
    monkeypatch.setattr(fitting, "FIRST_RESULTS", 10**6)
    assert first < 0.02 < error_of_first_ten()


def test_where_all_first_results_are_relevant_more_are_fitted_to() -> None:
    rows, labels = large_classes(0.2)
    found = neighbors_of(rows, 70)
    assert found.relevant(labels)[:, :40].all()
    fitted = MatchProbability.fit(rows, labels)
    said = fitted.probability(found.similarities, cohort_mean=np.full((720, 1), 0.0))
    assert said[:, 0].min() > 0.9
