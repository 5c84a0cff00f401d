"""What a ceiling adds to match probabilities, and which results they are fitted to."""

from typing import Any

import numpy as np
import pytest

from cbml import MatchProbability
from cbml.bayes import Reliability, fitting
from cbml.bayes.calibration import Line, Odds
from tests.bayes.cases import Set, crowded, large_classes, neighbors_of


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


def test_sisters_that_look_the_same_set_a_ceiling() -> None:
    fitted = MatchProbability.fit(*sisters(0))
    assert fitted.odds.line.ceiling < 0.999
    assert MatchProbability.fit(*crowded(0)).odds.line.ceiling == 1.0


@pytest.mark.parametrize("make", [lopsided, sisters, crowded])
def test_more_similar_is_never_less_probable(make: Any) -> None:
    fitted = MatchProbability.fit(*make(0))
    ladder = np.linspace(-1.0, 1.0, 200)
    for around in (0.2, 0.5, 0.9):
        said = fitted.probability(ladder, cohort_mean=[around])
        assert (np.diff(said) >= 0.0).all()
        assert said[0] < said[-1]


def test_a_line_is_its_sum() -> None:
    line = Line(3.0, -2.0, 0.5, 0.8)
    assert line.score(0.7, 0.4) == pytest.approx(3 * 0.7 - 2 * 0.4 + 0.5)
    assert line.score(0.9, 0.4) == pytest.approx(3 * 0.8 - 2 * 0.4 + 0.5)
    assert Odds(line)([-np.inf], [0.4]).tolist() == [-np.inf]


def test_the_first_ten_results_are_what_is_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = large_classes(1.6)

    def error_of_first_ten() -> float:
        fitted = MatchProbability.fit(rows, labels)
        found = neighbors_of(rows, fitted.depth)
        said = fitted.probability(
            found.similarities[:, :10],
            cohort_mean=fitted.cohort_mean(found.similarities),
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
