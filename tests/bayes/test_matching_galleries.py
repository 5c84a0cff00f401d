"""Match probabilities in galleries that are not like the set they were learned from."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from cbml import MatchProbability
from cbml.bayes import Reliability, check_results, match_probability, probability_for
from cbml.bayes.calibration import Odds
from cbml.errors import BadData
from tests.bayes.cases import Set, crowded, neighbors_of


@pytest.fixture(scope="module")
def fitted() -> MatchProbability:
    return MatchProbability.fit(*crowded(0))


def unit(rows: Any) -> Any:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_a_gallery_with_fewer_right_images_lowers_the_odds(fitted: MatchProbability) -> None:
    """One image of each class is left to find, of five where it was fitted."""
    rows, labels = crowded(2)
    queries, gallery = slice(0, None, 6), slice(1, None, 6)
    moved = fitted.for_gallery(rows[gallery], labels[gallery])
    assert (moved.positives, fitted.positives) == (1.0, 5.0)
    similarity = unit(rows[queries]) @ unit(rows[gallery]).T
    order = np.argsort(-similarity, axis=1)[:, : fitted.depth]
    lists = np.take_along_axis(similarity, order, axis=1)
    right = (labels[gallery][order] == labels[queries][:, None])[:, :5]
    before, after = (
        Reliability.of(one.probability(lists)[:, :5], right, ~right) for one in (fitted, moved)
    )
    assert after.log_loss < before.log_loss
    assert after.ece < 0.6 * before.ece


def test_a_image_of_the_gallery_has_one_right_image_less_to_find() -> None:
    """With two images of each class that is half of what a stranger finds."""
    rows, labels = crowded(0, each=2)
    ready = MatchProbability.fit(*crowded(1, each=2)).for_gallery(rows, labels)
    assert (ready.positives, ready.own_positives) == (2.0, 1.0)
    lists = neighbors_of(rows, ready.depth)
    right = lists.relevant(labels)[:, :10]
    stranger, own = (
        Reliability.of(ready.probability(lists.similarities, own=own)[:, :10], right, ~right)
        for own in (False, True)
    )
    assert own.ece < 0.4 * stranger.ece
    lone = ready.for_gallery(rows[::2], labels[::2])
    assert lone.positives == 1.0
    assert 0.0 < lone.own_positives < 0.01


def test_a_gallery_with_labels_teaches_its_own_weights(fitted: MatchProbability) -> None:
    """What was learned elsewhere is far too sure of itself here."""
    rows, labels = crowded(6)
    line = fitted.odds.line
    sure = Odds(line._replace(constant=line.constant + 3.0), fitted.odds.curve)
    other = dataclasses.replace(fitted, odds=sure)
    queries = np.arange(len(rows)) % 6 == 0
    moved = other.for_gallery(rows[~queries], labels[~queries])
    assert moved.positives == pytest.approx(5.0)
    assert moved.fitted_positives == pytest.approx(4.0)
    similarity = unit(rows[queries]) @ unit(rows[~queries]).T
    order = np.argsort(-similarity, axis=1)[:, : max(other.depth, moved.depth)]
    lists = np.take_along_axis(similarity, order, axis=1)
    right = (labels[~queries][order] == labels[queries][:, None])[:, :5]
    before, after = (
        Reliability.of(one.probability(lists)[:, :5], right, ~right) for one in (other, moved)
    )
    assert after.ece < 0.05 < before.ece
    assert moved.source == other.source != moved.odds.line
    few = other.for_gallery(rows[:190], labels[:190])
    assert few.odds == other.odds


def large() -> Set:
    """Fifteen classes of a hundred, which are nearly always right."""
    random = np.random.default_rng(3)
    labels = np.repeat(np.arange(15), 100)
    rows = random.normal(size=(15, 12))[labels] + 0.35 * random.normal(size=(1500, 12))
    return rows.astype(np.float32), labels


def test_a_few_large_classes_teach_their_own_weights(fitted: MatchProbability) -> None:
    rows, labels = large()
    ready = fitted.for_gallery(rows, labels)
    assert ready.odds != fitted.odds
    assert check_results(ready, rows, labels)[10].ece < 0.02
    some = labels < 4
    assert fitted.for_gallery(rows[some], labels[some]).odds == fitted.odds


def test_the_crowd_moves_behind_larger_classes_than_were_learned_from(
    fitted: MatchProbability,
) -> None:
    rows, labels = large()
    ready = fitted.for_gallery(rows, positives=99.0)
    assert ready.cohort == (149, 159)
    stays = dataclasses.replace(fitted, positives=99.0)
    check, before = (check_results(one, rows, labels)[10] for one in (ready, stays))
    assert check.ece < 0.02 < 0.1 < before.ece
    # Before it lie more wrong results, too: the number of right ones alone would say too much.
    rows, labels = crowded(1, each=60, classes=96)
    ready = fitted.for_gallery(rows, positives=59.0)
    boast = dataclasses.replace(ready, fitted_positives=fitted.fitted_positives)
    check, before = (check_results(one, rows, labels)[10] for one in (ready, boast))
    assert check.log_loss < 0.8 * before.log_loss


def test_labels_that_have_nothing_to_do_with_looks_are_as_none(fitted: MatchProbability) -> None:
    """Folders by date, say: a gallery of them gets the probabilities it came with."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 8)).astype(np.float32)
    rows[1::2] = -rows[::2]  # the farthest image has the same label, the nearest never
    dated = np.arange(400) // 2
    with pytest.raises(BadData):
        MatchProbability.fit(rows, dated)
    assert fitted.for_gallery(rows, dated) == fitted.for_gallery(rows)


def test_for_gallery_without_labels_keeps_the_expected_number(fitted: MatchProbability) -> None:
    rows, _ = crowded(3)
    assert fitted.for_gallery(rows).positives == fitted.positives
    assert fitted.for_gallery(rows, positives=2.0).positives == 2.0
    assert fitted.for_gallery(rows[:3]).typical_cohort_mean == fitted.typical_cohort_mean
    for wrong in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positives must be a finite number above zero"):
            fitted.for_gallery(rows, positives=wrong)


def test_probabilities_that_mislead_about_known_labels_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows(classes: int, common: float, noise: float) -> tuple[Any, Any]:
        random = np.random.default_rng(classes)
        labels = np.repeat(np.arange(classes), 8)
        drawn = random.normal(size=(classes, 32))[labels] + common * random.normal(size=32)
        drawn += noise * random.normal(size=drawn.shape)
        return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32), labels

    monkeypatch.setattr(match_probability, "FEWEST_CLASSES", 2)
    many, few = (MatchProbability.fit(*rows(classes, 0.0, 1.0)) for classes in (6, 2))
    assert probability_for(many, *rows(12, 0.0, 1.0)) is not None
    for fitted, common, noise in ((few, 0.0, 1.0), (many, 3.0, 0.5)):
        assert probability_for(fitted, *rows(12, common, noise)) is None
    assert probability_for(few, *rows(5, 3.0, 0.5)) is not None, "too few images to tell"


def test_images_of_other_classes_show_what_a_larger_gallery_means() -> None:
    """Few classes stand for many: a query has far more irrelevant images there that resemble it."""
    rows, labels = crowded(0)
    order = np.random.default_rng(0).permutation(480)
    held_out, trained, searched = (np.isin(labels, part) for part in np.split(order, [48, 240]))
    wrong = {}
    for name, others in (("alone", None), ("among others", rows[trained])):
        fitted = MatchProbability.fit(rows[held_out], labels[held_out], others=others)
        check = check_results(fitted, rows[searched], labels[searched])[10]
        wrong[name] = (check.ece, check.log_loss)
    assert wrong["among others"][0] < 0.5 * wrong["alone"][0], wrong
    assert wrong["among others"][1] < wrong["alone"][1], wrong


def test_no_other_images_change_nothing() -> None:
    rows, labels = crowded(0, classes=48)
    alone = MatchProbability.fit(rows, labels)
    assert MatchProbability.fit(rows, labels, others=rows[:0]) == alone
    assert MatchProbability.fit(rows, labels, others=crowded(1)[0][:96]) != alone
