"""`cbml analyze`, and what `cbml train` learns from similarities."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from cbml import MatchProbability
from cbml.runs import parameters
from cbml.training import read_record
from tests.fixtures import run_program as run
from tests.training.small import class_folders

SMALL = [
    *("--backbone", "conv4", "--crop", "16", "--steps", "2", "--set", "validation=0.5"),
    *("--set", "dim=8", "--set", "classes_per_batch=2", "--set", "samples_per_class=3"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("analyze")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CBML_CACHE", str(root / "cache"))
        words = ["train", str(class_folders(root)), *SMALL, "--parameters", "from-data"]
        assert run([*words, "--out", str(root / "run")]) == 0
    return root / "run"


@pytest.fixture(autouse=True)
def same_cache(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBML_CACHE", str(finished.parent / "cache"))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of figures take most of an analysis, and many tests look at none."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def test_few_held_out_classes_are_said_to_say_little(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(read_record(finished)["config"]["data"]["source"])
    assert run(["train", data, *SMALL, "--out", str(tmp_path / "three")]) == 0
    assert "fitted to only 3 held-out classes" in capsys.readouterr().err
    two = [*SMALL, "--set", "validation=0.3", "--out", str(tmp_path / "two")]
    assert run(["train", data, *two]) == 0
    assert "they need 3 held-out classes with two images or more" in capsys.readouterr().err
    assert not (tmp_path / "two" / "calibration.json").exists()


def test_training_leaves_constants_and_probabilities(finished: Path) -> None:
    record = read_record(finished)
    parameters = record["parameters"]
    assert parameters["statistics"]["positive_mean"] > parameters["statistics"]["negative_mean"]
    center = parameters["options"]["ratio.positive_center"]
    assert f"positive_center={center}" in record["loss"]
    assert "delta='mean'" in record["loss"]
    assert MatchProbability.load(finished / "calibration.json").positives > 0
    report = (finished / "report.html").read_text()
    assert "Match probabilities" in report
    assert "calibration error" in report


def test_a_run_that_looks_at_the_test_shows_how_far_probabilities_hold_there(
    finished: Path, tmp_path: Path
) -> None:
    shown = "<figcaption>Accuracy against confidence on"
    assert (finished / "report.html").read_text().count(shown) == 1
    data, out = str(read_record(finished)["config"]["data"]["source"]), tmp_path / "run"
    assert run(["train", data, *SMALL, "--out", str(out), "--test"]) == 0
    record = read_record(out)
    found = record["test_reliability"]
    assert sum(found["counts"]) == 10 * record["test_conditions"]["queries"]
    assert record["test_evaluations"] == 1
    report = (out / "report.html").read_text()
    assert report.count(shown) == 2
    assert "on the test, to which nothing was fitted" in report
    assert f"calibration error {found['ece']:.3f}" in report


def test_an_analysis_writes_numbers_figures_and_a_page(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "calibration.json").unlink()
    assert run(["analyze", str(finished), "--compare", str(finished), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["sets"]) == {"train", "validation"}
    # Two runs of one name: the path tells them apart.
    assert list(facts["sets"]["train"]) == ["before", "after", f"after, {finished}"]
    assert facts["sets"]["train"]["after"] == facts["sets"]["train"][f"after, {finished}"]
    names = {"analysis.html", "analysis.json"}
    for name in ("similarities", "ratios", "reliability"):
        names |= {f"{name}.png", f"{name}.svg"}
    assert {path.name for path in (finished / "analysis").iterdir()} == names
    page = (finished / "analysis" / "analysis.html").read_text()
    # Two charts of each set by each model, and one of each check of the probabilities.
    assert page.count("<svg") == 2 * 2 * 3 + len(facts["reliability"])
    assert "default-src 'none'" in page
    MatchProbability.load(finished / "calibration.json")
    assert read_record(finished)["test_evaluations"] == 0


def test_test_classes_are_looked_at_only_when_asked(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", str(finished), "--test", "--out", str(tmp_path / "figures")]) == 0
    shown = capsys.readouterr().out
    assert "test      " in shown
    assert "probabilities, test, first 5: ECE" in shown
    assert read_record(finished)["test_evaluations"] == 1
    assert (tmp_path / "figures" / "ratios.png").stat().st_size > 1000


def test_queries_are_paired_with_the_gallery(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no two queries are of one class, as in a set with one query for each."""
    folders = sorted(Path(read_record(finished)["config"]["data"]["source"]).iterdir())
    lines = ["path,label,split"]
    for place, folder in enumerate(folders):
        for number, path in enumerate(sorted(folder.iterdir())):
            split = "train" if place < 8 else "gallery" if number else "query"
            lines.append(f"{path},{folder.name},{split}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    out = tmp_path / "run"
    assert run(["train", str(tmp_path / "table.csv"), *SMALL, "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(["analyze", str(out), "--test", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["sets"]) == ["train", "validation", "query × gallery"]
    found = facts["sets"]["query × gallery"]["after"]
    asked, answered = found["images"], found["gallery"]
    assert (asked, found["classes"]) == (len(folders) - 8, len(folders) - 8)
    pairs = found["statistics"]
    assert pairs["positive_pairs"] == answered
    assert pairs["negative_pairs"] == asked * answered - answered
    checks = {name: sum(check["counts"]) for name, check in facts["reliability"].items()}
    assert checks["query × gallery, first 5"] == 5 * asked


@pytest.mark.usefixtures("no_figures")
def test_a_sample_does_not_replace_what_all_images_taught(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = json.loads((finished / "calibration.json").read_text())
    monkeypatch.setattr(parameters, "IMAGES", 8)
    monkeypatch.setattr(parameters, "SAMPLED_OF_CLASS", 4)
    out = tmp_path / "figures"
    assert run(["analyze", str(finished), "--out", str(out)]) == 0
    facts = json.loads((out / "analysis.json").read_text())
    assert facts["sets"]["validation"]["after"]["images"] == 8
    after = json.loads((finished / "calibration.json").read_text())
    assert sum(after["check"]["counts"]) == sum(before["check"]["counts"])
    line = after["odds"]["line"]
    assert line == pytest.approx(before["odds"]["line"], rel=1e-3)
    assert facts["reliability"]["validation, halves of classes"] == after["check"]


def test_images_learned_without_labels_are_no_held_out_classes(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them were trained on: probabilities learned from them would promise too much."""
    data, out = str(read_record(finished)["config"]["data"]["source"]), tmp_path / "run"
    assert run(["train", data, *SMALL, "--labels", "none", "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(["analyze", str(out), "--test", "--json"]) == 0
    shown = capsys.readouterr()
    facts = json.loads(shown.out)
    assert list(facts["sets"]) == ["train"]
    counts = read_record(finished)["data"]["counts"]
    images = counts["train"]["images"] + counts["validation"]["images"]
    assert facts["sets"]["train"]["after"]["images"] == images
    assert read_record(out)["test_evaluations"] == 0
    assert facts["reliability"] == {}
    assert "no classes were held out" in shown.err
    assert not (out / "calibration.json").exists()


@pytest.mark.usefixtures("no_figures")
def test_every_look_at_test_images_is_counted(finished: Path, tmp_path: Path) -> None:
    """Also by the name of the run's own images, and for the run that stands beside it."""
    other, out = tmp_path / "other", ["--out", str(tmp_path / "figures")]
    shutil.copytree(finished, other)
    looks = read_record(finished)["test_evaluations"]
    data = Path(read_record(finished)["config"]["data"]["source"])
    (tmp_path / "link").symlink_to(data)
    for words in ([str(data)], [str(tmp_path / "link")], ["--test", "--compare", str(other)]):
        assert run(["analyze", str(finished), *words, *out]) == 0
    assert read_record(finished)["test_evaluations"] == looks + 3
    assert read_record(other)["test_evaluations"] == looks + 1
    assert run(["analyze", str(finished), "--compare", str(other), *out]) == 0
    class_folders(tmp_path / "elsewhere")
    assert run(["analyze", str(finished), str(tmp_path / "elsewhere" / "classes"), *out]) == 0
    assert read_record(finished)["test_evaluations"] == looks + 3
    assert read_record(other)["test_evaluations"] == looks + 1


@pytest.mark.usefixtures("no_figures")
def test_without_matplotlib_the_numbers_are_there(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures"
    assert run(["analyze", str(finished), "--out", str(out), "--json"]) == 0
    shown = capsys.readouterr()
    facts = json.loads(shown.out)
    assert facts["sets"]["train"]["after"]["images"] > 0
    assert [Path(path).name for path in facts["files"]] == ["analysis.html"]
    said = next(line for line in shown.err.splitlines() if line.startswith("no figure files"))
    assert "pip install 'cbml[plots]'" in said
    assert "<table" in (out / "analysis.html").read_text()


@pytest.mark.usefixtures("no_figures")
def test_a_run_has_its_name_wherever_one_stands(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    assert run(["analyze", ".", "--out", str(tmp_path)]) == 0
    assert f"<title>{finished.name}</title>" in (tmp_path / "analysis.html").read_text()


def test_other_images(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "calibration.json").read_bytes()
    data = read_record(finished)["config"]["data"]["source"]
    words = ["analyze", str(finished), data, "--out", str(tmp_path / "figures"), "--json"]
    assert run(words) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["sets"]) == ["given"]
    assert facts["reliability"] == {}
    assert (finished / "calibration.json").read_bytes() == before


def test_mistakes_are_named(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", str(tmp_path / "nowhere")]) == 3
    assert "not the folder of a run" in capsys.readouterr().err
    words = ["train", "images", "--loss", "multi_similarity", "--parameters", "from-data"]
    assert run(words) == 2
    assert "only the loss cbml" in " ".join(capsys.readouterr().err.split())
    words = ["train", "images", "--parameters", "from-data", "--set", "loss.ratio=products"]
    assert run(words) == 2
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "loss.ratio and parameters=from-data exclude each other" in shown


def test_near_copies_end_a_default_training_with_a_remedy() -> None:
    from cbml.errors import BadData
    from cbml.runs.parameters import estimate_options
    from tests.bayes.test_analysis import near_copies

    with pytest.raises(BadData, match=r"near-copies.*--set parameters=given"):
        estimate_options(*near_copies())


def test_two_processes_estimate_the_constants_of_one(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each embeds its half of the images; both learn with the constants of the whole."""
    alone = read_record(finished)
    words = ["train", str(alone["config"]["data"]["source"]), *SMALL, "--parameters", "from-data"]
    out = tmp_path / "two"
    words += ["--processes", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["cbml", *words])  # told to the two that it starts
    assert run(words) == 0
    both = read_record(out)
    for part in ("options", "statistics"):
        for name, number in alone["parameters"][part].items():
            expected = pytest.approx(number, rel=1e-4) if isinstance(number, float) else number
            assert both["parameters"][part][name] == expected, name
    assert both["parameters"]["images"] == alone["parameters"]["images"]
    assert MatchProbability.load(out / "calibration.json").positives > 0
