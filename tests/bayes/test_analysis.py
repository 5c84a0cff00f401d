"""What the pairs of a set tell, and where they tell nothing."""

import numpy as np
import pytest

from cbml import MatchProbability, PairStatistics
from cbml.bayes import Reliability, SetAnalysis, analyze_set, check_posteriors, check_results
from cbml.errors import BadData
from cbml.query_gallery import QueryGallery
from cbml.report import draw_ratios, draw_reliability
from cbml.runs import analysis_tables
from tests.bayes.cases import Set, crowded, drawn


def test_queries_with_a_gallery_are_pairs_across() -> None:
    (rows, labels), (others, other_labels) = drawn(1), drawn(2, images=40, classes=6)
    both = QueryGallery.of(rows, labels, gallery_embeddings=others, gallery_labels=other_labels)
    found = analyze_set(both)
    assert found.statistics == PairStatistics.of(both)
    assert found.histogram.positive.sum() == found.statistics.positive_pairs
    assert (found.images, found.gallery) == (24, 40)
    assert found.classes == len({*labels.tolist(), *other_labels.tolist()})
    named = analyze_set(
        QueryGallery.of(
            rows,
            [f"class {label}" for label in labels],
            gallery_embeddings=others,
            gallery_labels=[f"class {label}" for label in other_labels],
        )
    )
    assert named.statistics == found.statistics


def halves(rows_and_labels: Set) -> tuple[Set, Set]:
    rows, labels = rows_and_labels
    return (rows[::2], labels[::2]), (rows[1::2], labels[1::2])


def test_checks_of_queries_search_the_gallery() -> None:
    query, gallery = halves(crowded(2))
    probability = MatchProbability.fit(*crowded(0))
    both = QueryGallery.of(*query, gallery_embeddings=gallery[0], gallery_labels=gallery[1])
    checks = check_results(probability, both)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (query[0], gallery[0])]
    nearest = (unit[0] @ unit[1].T).argmax(axis=1)
    right = int((gallery[1][nearest] == query[1]).sum())
    first = checks[1]
    seen = sum(share * count for share, count in zip(first.accuracy, first.counts, strict=True))
    assert seen == pytest.approx(right, abs=2)  # ties of float32 apart
    assert sum(checks[10].counts) == 10 * len(query[0])
    assert set(check_posteriors(both)) >= {"gaussian", "monotone"}


def test_a_gallery_of_one_image_can_be_searched_and_checked() -> None:
    """It has no crowd: its only image is where a typical one is."""
    rows, labels = crowded(2)
    both = QueryGallery.of(
        rows[1:30], labels[1:30], gallery_embeddings=rows[:1], gallery_labels=labels[:1]
    )
    checks = check_results(MatchProbability.fit(*crowded(0)), both)
    assert sum(checks[10].counts) == 29


def test_a_gallery_without_half_of_the_classes_cannot_be_checked() -> None:
    rows, labels = np.eye(4, dtype=np.float32), [0, 1, 2, 3]
    gallery = np.ones((3, 4))
    both = QueryGallery.of(rows, labels, gallery_embeddings=gallery, gallery_labels=[0, 0, 0])
    with pytest.raises(BadData, match="no image in the gallery"):
        check_posteriors(both)
    assert analyze_set(both).posteriors == {}
    with pytest.raises(ValueError, match="give nothing beside it"):
        analyze_set(both, labels)


def test_any_number_of_checks_can_be_drawn() -> None:
    check = Reliability.of([0.1, 0.8], [1, 1], [1, 0])
    figure = draw_reliability({f"set {number}": check for number in range(9)})
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 9


def near_copies() -> Set:
    """Images of a class are nearly one; the classes are far apart."""
    random = np.random.default_rng(0)
    labels = np.arange(40) // 4
    rows = np.eye(10, 16)[labels] + random.normal(size=(40, 16)) * 0.003
    return rows.astype(np.float32), labels


def test_near_copies_are_analyzed_and_drawn_without_the_ratio_they_have_not() -> None:
    found = analyze_set(*near_copies())
    assert 1e-6 < found.statistics.positive_std < 1e-3
    with pytest.raises(BadData, match="near-copies"):
        found.statistics.suggest_loss()
    lines = [len(figure.axes[0].lines) for figure in map(draw_ratios, [{"a": {"b": found}}])]
    assert lines == [3]  # counted, zero, and the quadratic exponent; no linear one


def test_what_the_gaussians_cannot_say_the_curve_still_does() -> None:
    """Copies of one image in each class have no spread, and no Gaussian."""
    random = np.random.default_rng(3)
    rows = np.repeat(random.normal(size=(30, 4)), 4, axis=0).astype(np.float32)
    found = analyze_set(rows, np.arange(120) // 4)
    assert set(found.posteriors) == {"prior", "monotone"}
    assert found.posteriors["monotone"].log_loss < 0.5 * found.posteriors["prior"].log_loss
    cells = dict(zip(*posterior_cells(found), strict=True))
    assert cells["log loss Gauss"] == cells["ECE Gauss"] == "–"
    assert cells["log loss free"] != "–"


def posterior_cells(found: SetAnalysis) -> tuple[tuple[str, ...], tuple[str, ...]]:
    table = analysis_tables({"validation": {"after": found}})[1]
    return table.heads, table.rows[0]


def test_tables_say_what_the_numbers_are_to_be_compared_with() -> None:
    found = analyze_set(*crowded(5))
    pairs, posteriors = analysis_tables({"validation": {"after": found}})
    cells = dict(zip(pairs.heads, pairs.rows[0], strict=True))
    assert cells["pairs P"] == f"{found.statistics.positive_pairs:,}"
    assert cells["pairs N"] == f"{found.statistics.negative_pairs:,}"
    assert cells["log-lik N"] == f"{found.negative_fit.log_likelihood:.3f}"
    assert float(cells["log-lik N"]) < float(cells["best N"])
    cells = dict(zip(posteriors.heads, posteriors.rows[0], strict=True))
    share = found.statistics.positive_pairs / sum(
        found.histogram.positive + found.histogram.negative
    )
    assert cells["prior"] == f"{share:.5f}"
    losses = [cells[f"log loss {name}"] for name in ("free", "Gauss", "prior")]
    assert [float(loss) for loss in losses] == sorted(map(float, losses))
