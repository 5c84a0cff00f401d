"""What a first run says: spelling before torch, the start's scores, the lines that lead on."""

import html
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cbml.cli.train import _no_gain
from cbml.data import load
from cbml.gallery import Gallery
from cbml.models import Embedder
from cbml.program import program_name
from cbml.progress import counted, duration
from cbml.runs import RunConfig
from cbml.training import ProgressCallback, StepReport, read_record
from tests.fixtures import run_program as run
from tests.program import Program
from tests.training.small import class_folders

SMALL = [
    *("--backbone", "conv4", "--crop", "16", "--steps", "2"),
    *("--set", "dim=8", "--set", "validate_every=1"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "images")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (754, "13 min"), (5460, "1 h 31 min")],
)
def test_times_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 steps"), (1, "1 step"), (1200, "1,200 steps")])
def test_one_is_not_many(count: int, text: str) -> None:
    assert counted(count, "step") == text


@pytest.mark.parametrize(
    "words",
    [
        ["train", "x", "--loss", "cmbl"],
        ["train", "x", "--backbone", "resnet5"],
        ["train", "x", "--method", "hcd"],
        ["train", "x", "--set", "learnig_rate=1"],
        ["train", "x", "--set", "precision=float8"],
        ["train", "x", "--minutes", "3", "--steps", "4"],
        ["train", "x", "--start", "run", "--backbone", "conv4"],
        ["train", "x", "--minutes", "0"],
    ],
)
def test_spelling_is_checked_before_torch_is_imported(words: list[str]) -> None:
    program = (
        "import sys\nfrom cbml.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["2", "False"], done.stdout + done.stderr


def test_the_help_lists_losses_and_backbones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("proxy_anchor", "multi_similarity", "bn_inception"))


def test_the_end_shows_both_scores_and_leads_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a run"
    assert run(["train", str(folder), *SMALL, "--out", str(out), "--test"]) == 0
    lines = capsys.readouterr().out.splitlines()
    record = read_record(out)
    tested = next(line for line in lines if line.startswith("  test recall@1 "))
    assert f"{record['test']['recall@1']:.4f}" in tested
    assert tested.endswith(f"start {record['test_start']['recall@1']:.4f}")
    assert not any(line.startswith("  test recall@1000 ") for line in lines), "of few images"
    assert any(f"look at it:  {out / 'report.html'}" in line for line in lines)
    assert any(f"index '{out}' {folder} --out '{out / 'gallery'}'" in line for line in lines)
    assert any(f"serve '{out / 'gallery'}' --open" in line for line in lines)
    assert run(["evaluate", str(out), "--test", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["start"] == record["test_start"]
    assert set(found["classes"]) <= {path.name for path in folder.iterdir()}
    of_classes = [row["recall@1"] for row in found["classes"].values()]
    assert of_classes == sorted(of_classes), "the worst first"
    page = (out / "report.html").read_text()
    assert "<h2>Classes</h2>" in page
    assert "Recall@100<" not in page, "there are fewer images"
    assert f"serve '{out / 'gallery'}' --open" in html.unescape(page), "the lines of the end"


def test_the_test_half_of_a_gallery_is_that_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = class_folders(tmp_path / "images"), tmp_path / "run"
    assert run(["train", str(folder), *SMALL, "--seed", "3", "--out", str(out)]) == 0
    tested = {Path(path).parent.name for path in load(folder, seed=3).test.paths}
    assert tested != {Path(path).parent.name for path in load(folder).test.paths}, "of seed 0"
    gallery = tmp_path / "gallery"
    words = ["index", str(out), str(folder), "--split", "test", "--out", str(gallery)]
    assert run(words) == 0
    with Gallery(gallery) as opened:
        assert {image.label for image in opened.images} == tested
    capsys.readouterr()
    words = ["embed", str(out), str(folder), "--split", "test", "--out", str(tmp_path / "v.npz")]
    assert run(words) == 0
    assert set(np.load(tmp_path / "v.npz")["labels"].tolist()) == tested


def test_a_run_reads_its_own_images_as_it_did_in_training(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat, out, gallery = tmp_path / "flat", tmp_path / "run", tmp_path / "gallery"
    flat.mkdir()
    for number, path in enumerate(folder.rglob("*.png")):
        shutil.copy(path, flat / f"kind-{path.parent.name}_{number}.png")
    names = ["--label-from", "{label}_{n}"]
    assert run(["train", str(flat), *SMALL, *names, "--out", str(out)]) == 0
    wanted = {f"kind-{path.name}" for path in folder.iterdir()}
    assert run(["index", str(out), str(flat), "--out", str(gallery)]) == 0
    with Gallery(gallery) as opened:
        assert {image.label for image in opened.images} == wanted
    assert run(["embed", str(out), str(flat), "--out", str(tmp_path / "v.npz")]) == 0
    assert set(np.load(tmp_path / "v.npz")["labels"].tolist()) == wanted
    assert run(["index", str(out), str(folder), "--out", str(tmp_path / "other")]) == 0
    with Gallery(tmp_path / "other") as opened:
        assert {image.label for image in opened.images} == {path.name for path in folder.iterdir()}
    capsys.readouterr()
    assert run(["evaluate", str(out), str(flat), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["classes"]) == wanted


def test_columns_of_a_table_are_named_wherever_it_is_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, model = tmp_path / "Liste.csv", tmp_path / "model"
    rows = [f"{path};{path.parent.name}\n" for path in sorted(folder.rglob("*.png"))]
    table.write_text("Datei;Gruppe\n" + "".join(rows))
    Embedder("conv4", dim=8).save(model)
    vectors = tmp_path / "v.npz"
    verbs = {
        "embed": ["embed", str(model), str(table), "--out", str(vectors)],
        "evaluate": ["evaluate", str(model), str(table), "--json"],
        "index": ["index", str(model), str(table), "--out", str(tmp_path / "gallery")],
    }
    columns = ["--path-column", "Datei", "--label-column", "Gruppe"]
    for words in verbs.values():
        assert run(words) == 3
        assert "--path-column" in capsys.readouterr().err, "the remedy is an option of the verb"
        assert run([*words, *columns]) == 0
    kinds = {path.name for path in folder.iterdir()}
    assert set(np.load(vectors)["labels"].tolist()) == kinds
    assert run([*verbs["evaluate"], *columns]) == 0
    assert set(json.loads(capsys.readouterr().out.splitlines()[-1])["classes"]) == kinds
    assert run(["evaluate", str(model), *columns]) == 2
    assert "these are for DATA" in capsys.readouterr().err


def test_a_training_that_did_not_help_says_so_in_its_last_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    changes = ("learning_rate=3", "ema=0", "min_area=0.16", "validation=0.6")
    harm = [word for change in changes for word in ("--set", change)]
    assert run(["train", str(folder), *SMALL, *harm, "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert read_record(out)["best_step"] == 0
    assert lines[-1].startswith("TRAINING DID NOT IMPROVE ON THE START")
    assert any("(start " in line and "last step " in line for line in lines)
    assert "Training did not improve on the start" in (out / "report.html").read_text()


def test_a_model_that_the_test_finds_worse_than_the_start_says_so_in_its_last_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    changes = ("learning_rate=3", "ema=0", "min_area=0.16", "validation=0")
    harm = [word for change in changes for word in ("--set", change)]
    assert run(["train", str(folder), *SMALL, *harm, "--test", "--out", str(out)]) == 0
    last, record = capsys.readouterr().out.splitlines()[-1], read_record(out)
    after, before = (record[name]["recall@1"] for name in ("test", "test_start"))
    assert after < before, "or this test shows nothing"
    assert last.startswith("THE TRAINED MODEL IS WORSE THAN THE START ON THE TEST IMAGES")
    assert f"Recall@1 {after:.3f} against {before:.3f}" in last
    assert "--set learning_rate=1" in last, "a third of what it was"
    assert "--minutes" in last


@pytest.mark.parametrize(("choose_by", "worse"), [("recall@1", True), ("map@r", False)])
def test_the_score_that_chose_a_model_says_whether_it_is_worse(choose_by: str, worse: bool) -> None:
    result: Any = SimpleNamespace(
        config=RunConfig("photos", training={"choose_by": choose_by}),
        fitted=SimpleNamespace(best_step=10, steps=10),
        test={"recall@1": 0.875, "map@r": 0.753},
        test_start={"recall@1": 0.917, "map@r": 0.657},
    )
    assert ("WORSE THAN THE START" in _no_gain(result)) == worse


def test_too_few_held_out_classes_for_probabilities_name_the_flag(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [*SMALL, "--set", "validation=0.1", "--out", str(tmp_path / "run")]
    assert run(["train", str(folder), *few]) == 0
    heard = capsys.readouterr().err
    assert not (tmp_path / "run" / "calibration.json").exists()
    assert "no match probabilities: " in heard
    advice = set(re.findall(r"--set validation=[\d.]+", heard))
    assert advice == {"--set validation=0.4"}, "one line does not contradict another"
    assert "labels:" not in heard
    many = [*SMALL, "--set", "validation=0.4", "--out", str(tmp_path / "many")]
    assert run(["train", str(folder), *many]) == 0
    assert "--set validation" not in capsys.readouterr().err, "what was given is not advised"


def test_a_gallery_knows_the_classes_that_its_model_was_trained_on(
    folder: Path, tmp_path: Path
) -> None:
    shared, out = tmp_path / "shared", tmp_path / "run"
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        place = shared / ("test" if number % 3 == 0 else "train") / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place / path.name)
    classes = len(list(folder.iterdir()))
    known = {}
    for images in (shared, folder):
        assert run(["train", str(images), *SMALL, "--out", str(out / images.name)]) == 0
        for part in ("test", "all"):
            gallery = tmp_path / f"{images.name}-{part}"
            words = [str(out / images.name), str(images), "--split", part, "--out", str(gallery)]
            assert run(["index", *words]) == 0
            with Gallery(gallery) as opened:
                known[images.name, part] = opened.state.known_labels
    assert [known[shared.name, part] for part in ("test", "all")] == [classes, classes]
    assert [known[folder.name, part] for part in ("test", "all")] == [0, 0]


def test_two_runs_are_compared(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(["train", str(folder), *SMALL, "--out", str(one), "--test"]) == 0
    assert run(["train", str(folder), *SMALL, "--out", str(two), "--loss", "proxy_anchor"]) == 0
    capsys.readouterr()
    assert run(["compare", str(one), str(two), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["loss.name"] == ["cbml", "proxy_anchor"]
    assert "model.dim" not in found["settings"]
    assert found["scores"]["test recall@1"][1] is None
    assert found["scores"]["held-out map@r"][0] is not None
    assert run(["compare", str(one), str(two)]) == 0
    shown = capsys.readouterr().out
    assert "proxy_anchor" in shown
    assert "recall@1000" not in shown, "of few images it can only be 1"
    moved = tmp_path / "elsewhere, in a folder with a long name"
    shutil.copytree(one, moved / "two")
    assert run(["compare", str(two), str(moved / "two")]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    columns = [str(two), str(moved / "two"), "change"]
    assert head.split("  ")[-3:] == columns, "both are called two"
    end = head.index("  change")
    assert {len(line) for line in lines if line.startswith("loss.name")} == {end}, "as wide as need"
    assert all(line[end] == " " and line[end + 2] in "+-" for line in lines if len(line) > end)
    assert run(["compare", str(one), str(tmp_path)]) == 3


def test_classes_that_the_start_has_seen_are_not_called_unseen(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--steps", "1", "--crop", "16"]
    for name, words in {
        "other seed": [str(folder), *SMALL, "--seed", "3"],
        "next": [str(folder), *small, "--start", str(tmp_path / "other seed")],
    }.items():
        assert run(["train", *words, "--out", str(tmp_path / name)]) == 0
    data = read_record(tmp_path / "next")["data"]
    shown = capsys.readouterr()
    assert "have names of classes that" in shown.err
    assert f"{tmp_path / 'next'}: 1 step\n" in shown.out
    assert ", 1 step, about " in shown.err
    assert (data["scores_for"], data["shared_classes"] > 0) == ("classes known to the start", True)
    assert "unseen" not in (tmp_path / "next" / "report.html").read_text().partition("Settings")[0]
    same = [str(folder), *small, "--seed", "3", "--start", str(tmp_path / "other seed")]
    assert run(["train", *same, "--out", str(tmp_path / "same split")]) == 0
    assert read_record(tmp_path / "same split")["data"]["scores_for"] == "unseen classes"


def test_a_bar_fits_into_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name, value in {"COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    shown = ProgressCallback()
    shown.begin(9, 4000)
    terms = {"positive": 2.18, "negative": 8.97, "variance": 0.01}
    shown.step(StepReport(step=10, loss=11.17, terms=terms, images=120))
    shown.end()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert re.search(r"step .* +10/4000 loss 11\.170, \d+ images/s, .* left\b", plain), plain


def test_ctrl_c_is_answered_at_once(folder: Path, tmp_path: Path) -> None:
    words = ["train", str(folder), *SMALL, "--steps", "100000", "--out", str(tmp_path / "run")]
    child = Program(*words)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while child.poll() is None and not (metrics.exists() and '"loss"' in metrics.read_text()):
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=120)[1]
    assert "stopping after this step; again to stop now" in said
    assert child.returncode == 130


def test_lines_to_copy_work_from_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "env" / "bin" / "cbml"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert program_name() == os.path.join("env", "bin", "cbml")
    monkeypatch.setenv("PATH", str(script.parent))
    assert program_name() == "cbml"
    monkeypatch.setattr(sys, "argv", ["/somewhere/cbml/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    assert program_name() == "env/bin/python -m cbml"


def test_data_check_ends_with_the_next_command_and_its_minutes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["data", "check", str(folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert f"cbml train {folder}    # about 10 minutes" in shown[-1]
    assert any("few to learn from" in line for line in shown)
    assert run(["data", "check", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["minutes"] == 10
