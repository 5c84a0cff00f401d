"""What the result's own background and a ceiling add to match probabilities."""

from typing import Any

import numpy as np
import pytest

from cbml import MatchProbability
from cbml.bayes import Reliability, fitting
from cbml.bayes.calibration import Line, Odds
from cbml.bayes.neighbors import ResultContext, result_context
from tests.bayes.cases import Set, crowded, drawn, large_classes, neighbors_of


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
    strangers = np.array([-1, -1])
    found = result_context(rows, strangers, places, places[:, :0], (2, 5), 0.77).cohort_mean
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
    around = fitted.result_context(rows, lists.indices)
    without, known = (
        Reliability.of(fitted.probability(lists.similarities, context=told), right, ~right)
        for told in (None, around)
    )
    assert known.log_loss < 0.98 * without.log_loss
    context = ResultContext(np.linspace(0.3, 0.9, 5), np.zeros(5))
    said = fitted.probability(np.full(5, 0.8), cohort_mean=[0.6], context=context)
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
        context = None if around is None else ResultContext(around, np.full(200, 0.3))
        said = fitted.probability(ladder, cohort_mean=[0.5], context=context)
        assert (np.diff(said) >= 0.0).all()
        assert said[0] < said[-1]


def test_a_line_is_its_sum() -> None:
    line = Line(3.0, -2.0, 0.5, -1.0, 0.8, 4.0)
    assert line.score(0.7, 0.4, 0.2) == pytest.approx(3 * 0.7 - 2 * 0.4 + 0.5 - 0.2)
    assert line.score(0.9, 0.4, 0.2) == pytest.approx(3 * 0.8 - 2 * 0.4 + 0.5 - 0.2)
    assert line.score(0.7, 0.4, 0.2, 0.5) == pytest.approx(3 * 0.7 - 2 * 0.4 + 0.5 - 0.2 + 2)
    assert Odds(line)([-np.inf], [0.4]).tolist() == [-np.inf]


def test_large_sets_look_up_only_some_results(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(rows: Any, queries: Any, results: Any, *others: Any) -> Any:
        asked.append(results.size)
        return result_context(rows, queries, results, *others)

    monkeypatch.setattr(fitting, "result_context", counted)
    whole = MatchProbability.fit(*lopsided(0))
    monkeypatch.setattr(fitting, "RESULT_COHORTS", 900)
    part = MatchProbability.fit(*lopsided(0))
    assert asked[0] == 960 * fitting.FIRST_RESULTS
    assert 450 < asked[1] <= 900 + 20
    assert part.by_query == whole.by_query


def test_the_first_ten_results_are_what_is_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = large_classes(1.6)

    def error_of_first_ten() -> float:
        fitted = MatchProbability.fit(rows, labels)
        found = neighbors_of(rows, fitted.depth)
        context = fitted.result_context(
            rows, found.indices[:, :10], nearest=found.indices, queries=found.queries
        )
        said = fitted.probability(
            found.similarities[:, :10],
            cohort_mean=fitted.cohort_mean(found.similarities),
            context=context,
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


def test_shared_neighbors_are_those_of_plain_loops() -> None:
    rows = unit(np.random.default_rng(0).normal(size=(24, 3)))  # no two are equally near
    depth = 4

    def nearest(place: int, left_out: int) -> list[int]:
        others = [other for other in range(24) if other not in (place, left_out)]
        return sorted(others, key=lambda other: -float(rows[place] @ rows[other]))

    different = set()
    for query in range(24):
        for left_out in (query, -1):  # one of the images itself, and one from elsewhere
            mine = ([] if left_out == query else [query]) + nearest(query, -1)
            lists = np.array([mine])
            context = result_context(
                rows, np.array([left_out]), lists, lists[:, :depth], (2, 5), 0.0
            )
            for result, shared in zip(mine, context.shared[0].tolist(), strict=True):
                theirs = [result, *nearest(result, left_out)][:depth]
                assert shared == pytest.approx(len({*theirs} & {*mine[:depth]}) / depth)
                different.add(shared)
    assert different == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_shared_neighbors_count_where_classes_are_large() -> None:
    rows, labels = large_classes(1.6)
    fitted = MatchProbability.fit(rows, labels)
    assert fitted.by_both is not None
    assert fitted.shared_depth == 59
    assert fitted.by_both.line.shared_weight > 0.0
    few = fitted.for_gallery(rows, positives=8)
    assert few.shared_depth == 8
    small = MatchProbability.fit(*lopsided(0))
    assert small.by_both is not None
    assert small.shared_depth == small.by_both.line.shared_weight == 0.0
