"""Match probabilities of search results: calibrated on classes they have not seen."""

import dataclasses
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbml import MatchProbability, PairStatistics
from cbml.bayes import Reliability
from cbml.bayes.analysis import analyze_set, check_posteriors, check_results
from cbml.bayes.fitting import backgrounds, crowd_ranks
from cbml.bayes.lists import nearest_lists, ranks_to_learn_from
from cbml.bayes.records import sealed
from cbml.errors import BadData, DamagedFile
from tests.bayes.cases import Set, crowded
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
    lists = nearest_lists(rows, 3)
    assert lists.similarities.shape == (5, 3)
    for query, neighbours in zip(lists.queries, lists.neighbours.tolist(), strict=True):
        assert query not in neighbours
    assert sorted(lists.neighbours[0].tolist()) == [1, 2, 4]  # true duplicates stay
    assert nearest_lists(rows, 99).similarities.shape == (5, 4)


def test_the_crowd_is_behind_what_can_be_right() -> None:
    assert crowd_ranks(np.full(50, 3), 1000) == (10, 20)
    assert crowd_ranks(np.full(50, 60), 1000) == (90, 100)
    assert crowd_ranks(np.full(4, 1), 7) == (3, 7)
    assert crowd_ranks(np.full(9, 50_000), 10**6) == (1000, 1010)
    lists = np.array([[0.9, 0.8, 0.4, 0.2], [0.9, 0.8, 0.4, -np.inf], [0.9, 0.8, *[-np.inf] * 2]])
    assert backgrounds(lists, (2, 4), 0.77).ravel().tolist() == pytest.approx([0.3, 0.4, 0.77])


def test_where_it_says_so_it_is_so_on_unseen_classes(fitted: MatchProbability, unseen: Set) -> None:
    for count, check in check_results(fitted, *unseen).items():
        assert check.ece < (0.1 if count == 1 else 0.07), (count, check)
        sure = [
            (seen, number)
            for said, seen, number in zip(check.said, check.seen, check.counts, strict=True)
            if said > 0.85
        ]
        assert sum(number for _, number in sure) > 20
        right = sum(seen * number for seen, number in sure) / sum(number for _, number in sure)
        assert right > 0.8


def test_the_background_makes_the_difference(fitted: MatchProbability, unseen: Set) -> None:
    """Posteriors of pairs are calibrated for pairs, not for the first results of a search."""
    rows, labels = unseen
    statistics = PairStatistics.of(*crowded(0))
    lists = nearest_lists(unit(rows), fitted.depth)
    right = lists.matches(labels)[:, :1]
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
    part = fitted.probability(ladder[[3, 7]], background=fitted.background(ladder))
    assert part.tolist() == pytest.approx(whole[[3, 7]].tolist())
    gaps = fitted.probability(np.array([[*ladder, -np.inf], [*ladder, 0.1]]))
    assert gaps[0].tolist() == pytest.approx([*whole.tolist(), 0.0])
    assert fitted.probability(0.9).shape == ()
    with pytest.raises(ValueError, match="NaN"):
        fitted.probability([0.5, math.nan])


def test_a_gallery_with_fewer_right_pictures_lowers_the_odds(fitted: MatchProbability) -> None:
    """One picture of each class is left to find, of five where it was fitted."""
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


def test_a_picture_of_the_gallery_has_one_right_picture_less_to_find() -> None:
    """With two pictures of each class that is half of what a stranger finds."""
    rows, labels = crowded(0, each=2)
    ready = MatchProbability.fit(*crowded(1, each=2)).for_gallery(rows, labels)
    assert (ready.positives, ready.own_positives) == (2.0, 1.0)
    lists = nearest_lists(unit(rows), ready.depth)
    right = lists.matches(labels)[:, :10]
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
    sure = fitted.line._replace(constant=fitted.line.constant + 3.0)
    other = dataclasses.replace(fitted, line=sure)
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
    assert moved.source == other.source != moved.line
    few = other.for_gallery(rows[:190], labels[:190])
    assert few.line == other.line


def large() -> Set:
    """Fifteen classes of a hundred, which are nearly always right."""
    random = np.random.default_rng(3)
    labels = np.repeat(np.arange(15), 100)
    rows = random.normal(size=(15, 12))[labels] + 0.35 * random.normal(size=(1500, 12))
    return rows.astype(np.float32), labels


def test_a_few_large_classes_teach_their_own_weights(fitted: MatchProbability) -> None:
    rows, labels = large()
    ready = fitted.for_gallery(rows, labels)
    assert ready.line != fitted.line
    assert check_results(ready, rows, labels)[10].ece < 0.02
    some = labels < 4
    assert fitted.for_gallery(rows[some], labels[some]).line == fitted.line


def test_the_crowd_moves_behind_larger_classes_than_were_learned_from(
    fitted: MatchProbability,
) -> None:
    rows, labels = large()
    ready = fitted.for_gallery(rows, positives=99.0)
    assert ready.crowd == (149, 159)
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
    rows[1::2] = -rows[::2]  # the farthest picture has the same label, the nearest never
    dated = np.arange(400) // 2
    with pytest.raises(BadData):
        MatchProbability.fit(rows, dated)
    assert fitted.for_gallery(rows, dated) == fitted.for_gallery(rows)


def test_for_gallery_without_labels_keeps_the_expected_number(fitted: MatchProbability) -> None:
    rows, _ = crowded(3)
    assert fitted.for_gallery(rows).positives == fitted.positives
    assert fitted.for_gallery(rows, positives=2.0).positives == 2.0
    assert fitted.for_gallery(rows[:3]).typical_background == fitted.typical_background
    for wrong in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positives must be a finite number above zero"):
            fitted.for_gallery(rows, positives=wrong)


@pytest.mark.parametrize("copies", [30, 60, 100])
def test_a_set_with_many_identical_pictures_can_be_learned_from(copies: int) -> None:
    for seed in range(3):
        random = np.random.default_rng(seed)
        labels = np.repeat(np.arange(40), 6)
        rows = random.normal(size=(40, 8))[labels] + 0.6 * random.normal(size=(240, 8))
        rows[random.permutation(240)[:copies]] = random.normal(size=8)
        said = MatchProbability.fit(rows.astype(np.float32), labels).probability([0.9, 0.5])
        assert 0.0 < said[1] <= said[0] < 1.0


def test_ranks_to_learn_from_stand_for_the_whole_list() -> None:
    for depth in (3, 128, 129, 1010):
        ranks, counts = ranks_to_learn_from(depth)
        assert counts.sum() == depth
        assert len(ranks) <= 128
        assert (np.diff(ranks) > 0).all()
        assert ranks[-1] < depth
        # Each stands for the ranks around it.
        assert (ranks * counts).sum() == pytest.approx(depth * (depth - 1) / 2, rel=0.02)


def test_large_classes_take_no_more_memory() -> None:
    """Lists that reach behind classes of 2,000 pictures would fill 680 megabytes."""
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
    assert peak < 120e6


def test_save_and_load(fitted: MatchProbability, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    for one in (fitted, dataclasses.replace(fitted, curve=None)):
        one.save(path)
        assert MatchProbability.load(path) == one


def test_a_file_of_the_earlier_kind_is_read(fitted: MatchProbability, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    facts = dict(fitted.as_record())
    for name in ("kind", "sha256", "own_positives"):
        del facts[name]
    facts["line"], facts["source"] = facts["line"][:3], facts["source"][:3]
    path.write_text(json.dumps(sealed("cbml match probability 1", facts)))
    assert MatchProbability.load(path) == fitted
    path.write_text(path.read_text().replace('"positives": 5.0', '"positives": 6.0'))
    with pytest.raises(DamagedFile, match="altered"):
        MatchProbability.load(path)


def test_altered_files_are_refused(fitted: MatchProbability, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    fitted.save(path)
    text = path.read_text()
    damaged = [
        "",
        "[]",
        "{}",
        text[: len(text) // 2],
        text.replace("match probability", "index"),
        text.replace('"positives": 5.0', '"positives": 6.0'),
        json.dumps(sealed("cbml match probability 2", {"line": [1.0]})),
        json.dumps(sealed("cbml match probability 2", {**fitted.as_record(), "line": [1.0, 2.0]})),
        json.dumps(sealed("cbml match probability 2", {**fitted.as_record(), "crowd": [30, 4]})),
        json.dumps(sealed("cbml match probability 2", {**fitted.as_record(), "positives": -1.0})),
        json.dumps(sealed("cbml match probability 2", {**fitted.as_record(), "curve": [[1], []]})),
    ]
    for content in damaged:
        assert content != text
        path.write_text(content)
        with pytest.raises(DamagedFile, match=r"calibration\.json"):
            MatchProbability.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedFile):
        MatchProbability.load(path)


@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        (np.eye(4), [0, 1, 2, 3], "no two pictures share a class"),
        (np.eye(4), [0, 0, 0, 0], "too few classes"),
        (np.eye(1), [0], "one picture is no gallery"),
    ],
)
def test_too_little_to_learn_from(rows: Any, labels: list[int], words: str) -> None:
    with pytest.raises(BadData, match=words):
        MatchProbability.fit(rows, labels)


def test_similarity_that_tells_nothing_is_refused() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(200, 4)).astype(np.float32)
    labels = np.arange(200) // 2
    # The farthest picture is the right one: similar pictures are always wrong.
    rows[1::2] = -rows[::2]
    with pytest.raises(BadData, match=r"nothing to calibrate|no right or no wrong"):
        MatchProbability.fit(rows, labels)


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
    assert (plain["pictures"], plain["classes"]) == (2880, 480)
    assert sum(plain["histogram"]["positive"]) == plain["statistics"]["positive_pairs"]
    few = analyze_set(np.array([[1.0, 0], [1, 0.1], [0, 1]]), [0, 0, 1])
    assert few.posteriors == {}
