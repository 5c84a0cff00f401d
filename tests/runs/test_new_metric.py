"""A metric that is registered once is seen in evaluation, report, tables and the gallery."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cbml
from cbml.evaluation import METRICS, Metric
from cbml.experiments.rendering import _score
from cbml.gallery import Gallery
from cbml.report import write_run_page
from cbml.runs import note_test_evaluation
from cbml.training import read_record
from cbml.training.records import update_record
from tests.gallery import small

RANDOM = np.random.default_rng(0)
ROWS, LABELS = RANDOM.normal(size=(30, 4)), np.arange(30) % 5


@pytest.fixture(autouse=True)
def metric(monkeypatch: pytest.MonkeyPatch) -> None:
    def second_hit(ranks: Any, positives: Any) -> Any:
        return ranks[:, 0] == 2

    monkeypatch.setitem(METRICS, "second_hit", Metric(second_hit, "first hit"))


def test_in_the_report_and_in_tables(tmp_path: Path) -> None:
    scores = cbml.evaluate(ROWS, LABELS)
    expected = float((scores.first_hits == 2).mean())
    assert 0.0 < expected < 1.0
    assert scores.metrics["second_hit"] == expected
    update_record(tmp_path, {})
    note_test_evaluation(tmp_path, scores)
    write_run_page(tmp_path / "report.html", read_record(tmp_path), [])
    page = (tmp_path / "report.html").read_text()
    assert f"<th>second_hit</th><td>{100 * expected:.1f}</td>" in page
    assert _score({"scores": {"test": scores.metrics}}, "SECOND_HIT") == 100 * expected


def test_in_the_gallery_that_the_service_answers_from(tmp_path: Path) -> None:
    small.built(small.images(tmp_path / "images"), tmp_path / "gallery")
    with Gallery(tmp_path / "gallery") as gallery:
        scores = gallery.state.scores
        assert scores is not None
        found = (scores.first_hits[scores.positives > 0] == 2).mean()
        assert scores.totals["metrics"]["second_hit"] == pytest.approx(found)
