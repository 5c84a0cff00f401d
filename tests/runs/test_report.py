"""report.html says what the records say, shows unseen classes, and is text whatever the labels."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbml.bayes import MatchProbability, PairHistogram, PairStatistics
from cbml.data import ImageDataset, Splits
from cbml.models import Embedder, find_backbone
from cbml.report import QueryTiles, Tile, line_chart, neighbor_tile, ratio_chart, write_run_page
from cbml.report.charts import Series
from cbml.runs.report import _IMAGES, _calibration, _some_classes, pair_histogram, report_run
from cbml.training import Run, read_metrics, read_record, update_record
from cbml.training.records import Records
from tests.training.small import make_images

NASTY = '<script>alert("1")</script>'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps, as its records tell it."""
    records = Records(Run(tmp_path / "a run"), writes=True)
    records.note(
        {
            "best_step": 3,
            "steps_done": 3,
            "config": {"data": {"source": NASTY}},
            "test_evaluations": 0,
        }
    )
    records.add({"step": 0, "validation": {"recall@1": 0.25, "map@r": 0.125, "recall@10": 0.5}})
    for step in (1, 2, 3):
        terms = {"positive": 1.5, "negative": 0.25, "variance": 0.0625}
        records.add({"step": step, "loss": 2.0 / step, **terms})
    records.add({"step": 3, "validation": {"recall@1": 0.75, "map@r": 0.5, "recall@10": 1.0}})
    return tmp_path / "a run"


def written(run: Path, **shown: Any) -> str:
    write_run_page(run / "report.html", read_record(run), read_metrics(run), **shown)
    return (run / "report.html").read_text()


def test_what_was_trained_and_what_the_scores_are_for(run: Path) -> None:
    record = read_record(run)
    sections = {
        "data": {"allow_partial": False, "source": "photos"},
        "model": {"backbone": "conv4"},
        "loss": {"name": "cbml"},
        "method": {"name": None},
    }
    record["config"] = sections
    write_run_page(run / "report.html", record, read_metrics(run))
    page = (run / "report.html").read_text()
    assert "photos, conv4, loss cbml · 3 steps" in page
    assert "Held-out classes are never trained on" in page
    record["data"] = {"shared_classes": 4}
    sections["method"] = {"name": "hdc"}
    check = {"ece": 0.1, "brier": 0.2, "confidence": [0.5], "accuracy": [0.4], "counts": [9]}
    write_run_page(run / "report.html", record, read_metrics(run), calibration=check)
    page = (run / "report.html").read_text()
    assert "photos, conv4, method hdc" in page
    assert "Scores are for new images of known classes. Held-out images are never" in page
    assert "held-out classes" not in page


def test_an_installed_package_has_no_commit_to_show(run: Path) -> None:
    record = read_record(run)
    for environment, shown in (({"commit": None}, False), ({"commit": "abc123"}, True)):
        record["environment"] = environment
        write_run_page(run / "report.html", record, read_metrics(run))
        assert (" · commit " in (run / "report.html").read_text()) == shown


def test_scores_among_fewer_images_than_they_count_are_left_out(run: Path) -> None:
    record = read_record(run)
    counts = {"train": 90, "validation": 8, "test": 200}
    record["data"] = {"counts": {name: {"images": count} for name, count in counts.items()}}
    for test, shown in (({}, False), ({"recall@1": 0.5, "recall@10": 0.75}, True)):
        record["test"] = test
        write_run_page(run / "report.html", record, read_metrics(run))
        # Only what was searched counts: the test images say nothing until they are scored.
        assert ("Recall@10" in (run / "report.html").read_text()) == shown


def test_scores_curves_and_queries(run: Path) -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]], dtype=np.float32)
    labels = np.array([0, 0, 1])
    moments = PairStatistics.of(rows, labels)
    assert moments.positive_mean == pytest.approx(1.0)
    shown = pair_histogram("unseen ones", PairHistogram.of(rows, labels), moments)
    found = [
        neighbor_tile("data:1", "swan", 0.9, True),
        neighbor_tile("data:2", NASTY, 0.8, False),
    ]
    queries = [("Worst queries", [QueryTiles(Tile("data:q", "swan", "query", "query"), found)])]
    page = written(run, histograms=[shown], queries=queries)
    cells = re.findall(
        r"<tr><th>(?:<abbr[^>]*>)?([^<]+)(?:</abbr>)?</th><td>([^<]+)</td><td>([^<]+)</td></tr>",
        page,
    )
    assert cells == [
        ("Recall@1", "25.0", "75.0"),
        ("Recall@10", "50.0", "100.0"),
        ("MAP@R", "12.5", "50.0"),
    ]
    for title in ("L, the loss", "L_P, positive", "L_N, negative", "L_2, variance"):
        assert title in page
    assert len(re.findall(r'class="tile relevant"', page)) == 1
    assert len(re.findall(r'class="tile irrelevant"', page)) == 1
    assert "same label, mean 1.00" in page
    assert "different labels, mean 0.60" in page
    assert "Worst queries" in page
    assert NASTY not in page
    assert "Alarms" not in page
    assert "Test evaluations so far: 0" in page


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1.0, 1e12])
def test_a_line_of_any_size_is_drawn(size: float) -> None:
    chart = line_chart("L_N", [(0, size), (1, 2 * size), (2, 3 * size)])
    low, middle, high = (float(pair.split(",")[1]) for pair in _points(chart).split())
    assert low > middle > high, "higher numbers stand higher up"


def test_a_line_of_equal_values_ends_at_them() -> None:
    chart = line_chart("Recall@1", [(0, 1.0), (5, 1.0)])
    assert ">1</text>" in chart
    assert ">0</text>" in chart
    assert ">1.5</text>" not in chart
    assert line_chart("L_2", [(0, 0.0), (5, 0.0)]), "nothing to span"


def _points(chart: str) -> str:
    (found,) = re.findall('points="([^"]+)"', chart)
    return str(found)


def test_alarms_are_shown(run: Path) -> None:
    records = Records(Run(run, resume=True), writes=True)
    records.add({"step": 2, "skipped": f"step 2: the loss is nan; the batch: {NASTY}"})
    records.add({"step": 3, "collapse": "collapse at step 3: all similarities are above 0.99"})
    page = written(run)
    assert "the loss is nan" in page
    assert "collapse at step 3" in page
    assert NASTY not in page


def test_the_test_classes_are_shown_only_when_they_were_looked_at(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    images: ImageDataset = make_images(tmp_path / "images")
    train, held, test = (images.of_classes(np.array(pair)) for pair in ([0, 1], [2, 3], [4, 5]))
    splits = Splits(train=train, validation=held, test=test)
    preprocessing = find_backbone("conv4").preprocessing.with_crop(16)
    model = Embedder("conv4", dim=8, preprocessing=preprocessing)
    titles = ["training classes", "unseen classes, held out"]
    for looks in (0, 1):
        record = {"best_step": 3, "test_evaluations": looks}
        update_record(run, record)
        report_run(run, model, splits)
        page = (run / "report.html").read_text()
        expected = titles + ["unseen classes, test"] * looks
        assert re.findall(r"<figcaption>((?:training|unseen)[^<]*?) <span", page) == expected
        assert f"Worst queries among {expected[-1]}" in page
        assert page.count('class="tile query"') == 4, "one of each class, best and worst"


def test_a_calibration_that_was_altered_is_not_shown(tmp_path: Path) -> None:
    random, path = np.random.default_rng(0), tmp_path / "calibration.json"
    labels = np.arange(400) % 40
    rows = 2 * random.normal(size=(40, 8))[labels] + random.normal(size=(400, 8))
    MatchProbability.fit(rows, labels).save(path)
    check, note = _calibration(tmp_path, {})
    assert check is not None
    assert note == ""
    counts = {"test": {"images": 2485, "classes": 81}}
    tested = {"data": {"counts": counts}, "test_reliability": {}}
    said = "about 10 images of a class; the test has about 31"
    assert said in _calibration(tmp_path, tested)[1], "why they are far off"
    assert _calibration(tmp_path, {"data": {"counts": counts}})[1] == "", "nothing was tested"
    counts["test"]["classes"] = 200
    assert _calibration(tmp_path, tested)[1] == "", "about as large"
    record = json.loads(path.read_text())
    record["check"]["ece"] = 0.0
    path.write_text(json.dumps(record))
    check, note = _calibration(tmp_path, {})
    assert check is None
    assert "damaged; write it again" in note


@pytest.mark.parametrize("sizes", [[50_000, 50_000], [100_000], [2] * 5000, [90_000] + [1] * 50])
def test_however_large_the_classes_a_report_looks_at_few_images(sizes: list[int]) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    names = tuple(map(str, range(len(sizes))))
    some = _some_classes(ImageDataset((Path("a.png"),) * len(labels), labels, names))
    assert len(some) <= _IMAGES, "all pairs of them are looked at"
    assert len(some.class_names) >= min(2, len(sizes))


def test_a_line_ends_where_it_leaves_the_chart() -> None:
    # y from -0.5 to 0.5; the line crosses it twice, between the similarities 0.6 and 0.9.
    line = Series([(0.6, -1.0), (0.7, 0.0), (0.8, 0.0), (0.9, 1.0)], name="formula")
    chart = str(ratio_chart("steep", [], [line], (0.6, 0.9)))
    (path,) = re.findall(r'<polyline [^>]*points="([^"]*)"', chart)
    spots = [tuple(map(float, spot.split(","))) for spot in path.split()]
    xs, ys = zip(*spots, strict=True)
    left, right = 46, 408
    sixth = (right - left) / 6
    assert xs == pytest.approx([left + sixth * part for part in (1, 2, 4, 5)], abs=0.1)
    assert ys[0] > ys[1] == ys[2] > ys[3]
    outside = Series([(0.6, 2.0), (0.9, 3.0)])
    assert "polyline" not in str(ratio_chart("outside", [], [outside], (0.6, 0.9)))
    again = Series([(0.6, 0.0), (0.7, 2.0), (0.8, 0.0)])
    assert str(ratio_chart("twice", [], [again], (0.6, 0.9))).count("polyline") == 2


def test_a_narrow_axis_has_numbers() -> None:
    chart = str(ratio_chart("narrow", [(0.7, 0.1)], [], (0.55, 0.95)))
    assert [text for text in ("0.6", "0.7", "0.8", "0.9") if f">{text}</text>" in chart]


def test_few_counted_ratios_do_not_stretch_the_axis() -> None:
    chart = str(ratio_chart("one bin", [(0.5, 0.13)], [], (0.0, 1.0)))
    ticks = [float(text) for text in re.findall(r">(-?[\d.]+)</text>", chart)]
    assert min(ticks) <= -0.5
    assert max(ticks) >= 0.5
