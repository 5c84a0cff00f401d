"""`cbml train` from the words of the command line to the files of the run."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cbml.runs import RunConfig
from cbml.training import read_metrics, read_record, update_record
from tests.fixtures import run_program as run
from tests.program import Program
from tests.training.small import class_folders

SMALL = [
    *("--backbone", "conv4", "--crop", "16", "--steps", "4"),
    *("--set", "dim=8", "--set", "classes_per_batch=3", "--set", "samples_per_class=3"),
    *("--set", "validate_every=2", "--set", "checkpoint_every=2"),
]
PROGRAM = [sys.executable, "-c", "from cbml.cli import main; main()"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "images")


def test_a_run_writes_all_it_promises(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    bad = folder / "0" / "broken.png"
    bad.write_bytes(b"no image")
    words = [str(folder), *SMALL, "--out", str(out), "--set", "bad_limit=0.9", "--json", "--test"]
    assert run(["train", *words]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["steps"] == 4
    assert 0 <= answer["validation"] <= 1
    assert 0 <= answer["test"]["recall@1"] <= 1
    assert "learning rates: backbone 0.0001, head 0.0001" in printed.err
    record = read_record(out)
    assert record["test_evaluations"] == 1
    assert record["config"]["data"]["source"] == str(folder)
    assert len([line for line in read_metrics(out) if "validation" in line]) == 3
    for name in ("model/manifest.json", "checkpoints/step-000000004/manifest.json"):
        assert (out / name).exists()
    report = (out / "report.html").read_text()
    assert "<svg" in report
    loaded = r"src=\"(?!data:)|href=\"[^\"]*//"
    assert not re.search(loaded, report), "the report must stand alone"
    assert run(["train", *words]) == 3, "a run is not overwritten"


def test_images_that_cannot_be_read_are_listed_and_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    for place in folder.iterdir():
        (place / "broken.png").write_bytes(f"no image {place.name}".encode())
    words = [*SMALL, "--steps", "30", "--out", str(out), "--set", "bad_limit=0.9"]
    assert run(["train", str(folder), *words]) == 0
    assert f"some images cannot be read: {out / 'bad_images.csv'}" in capsys.readouterr().out
    assert "broken.png" in (out / "bad_images.csv").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "learning_rat=1"], "did you mean 'learning_rate'"),
        (["--set", "loss.variance_wait=1"], "did you mean 'loss.variance_weight'"),
        (["--loss", "cmbl"], "did you mean 'cbml'"),
        (["--set", "loss.ratio=cub"], "use one of fine_grained"),
        (["--resume", "elsewhere"], "either DATA or --resume"),
    ],
)
def test_wrong_words_are_usage_errors(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "emoji", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_loss_options_reach_the_loss(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--set", "loss.variance_weight=0.25", "--set", "loss.ratio.negative_center=0.75"]
    assert run(["train", str(folder), *SMALL, *options, "--out", str(out)]) == 0
    assert "variance_weight=0.25" in read_record(out)["loss"]
    assert "negative_center=0.75" in read_record(out)["loss"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_name_the_way_on_and_resume_finishes(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    words = ["train", str(folder), *SMALL, "--set", "validate_every=0", "--out", str(out)]
    words[words.index("--steps") + 1] = "100000"
    child = Program(*words)
    while child.poll() is None and not any("loss" in line for line in read_metrics(out)):
        time.sleep(0.05)
    child.send_signal(number)
    error = child.communicate(timeout=60)[1]
    assert child.returncode == 128 + number
    last = error.strip().splitlines()[-1]
    assert last.endswith(f"resume with:  cbml train --resume {out}")
    steps = max(line["step"] for line in read_metrics(out)) + 2
    assert run(["train", "--resume", str(out), "--steps", str(steps)]) == 0
    assert read_record(out)["steps_done"] == steps


def test_a_closed_terminal_ends_a_run_in_order(folder: Path, tmp_path: Path) -> None:
    """Nobody reads standard error any more, as after Ctrl-C in `cbml train 2>&1 | tee log`."""
    out = tmp_path / "run"
    words = ["train", str(folder), *SMALL, "--set", "validate_every=0", "--out", str(out)]
    words[words.index("--steps") + 1] = "100000"
    with subprocess.Popen([*PROGRAM, *words], stderr=subprocess.PIPE) as child:
        while child.poll() is None and not any("loss" in line for line in read_metrics(out)):
            time.sleep(0.05)
        assert child.stderr is not None
        child.stderr.close()
        child.send_signal(signal.SIGHUP)
    assert child.returncode == 128 + signal.SIGHUP
    assert any(out.glob("checkpoints/step-*/manifest.json"))


def test_standard_error_may_be_closed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert run(["train", str(folder), *SMALL, "--out", str(tmp_path / "run")]) == 0
    sys.stderr.close()


def small_folder(folder: Path, classes: int) -> Path:
    small = folder.parent / f"{classes} classes"
    for label in range(classes):
        shutil.copytree(folder / str(label), small / str(label))
    return small


OPEN = ["--backbone", "conv4", "--crop", "16", "--steps", "2", "--set", "dim=8"]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_small_folder_trains_without_validation(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], classes: int
) -> None:
    out = tmp_path / "run"
    assert run(["train", str(small_folder(folder, classes)), *OPEN, "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert f"a batch has {classes} classes with 8 images each" in said
    assert "too few to hold some out for validation" in said
    record = read_record(out)
    assert record["config"]["training"]["classes_per_batch"] == classes
    assert record["config"]["training"]["samples_per_class"] == 8
    assert any("validation" in note for note in record["data"]["notes"])
    assert run(["evaluate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] == "train"
    assert run(["train", "--resume", str(out), "--steps", "3"]) == 0
    assert read_record(out)["sampler"]["classes_per_batch"] == classes


def test_a_folder_that_cannot_train_names_the_remedy(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    explicit = ["--set", "classes_per_batch=15"]
    for data, words, message in [
        (folder / "0", [], "images without class folders or labels"),
        (folder / "0", [], "--labels none"),
        (tmp_path / "empty", [], "no images found"),
        (small_folder(folder, 2), explicit, "--set classes_per_batch=2"),
        (small_folder(folder, 1), [], "put each class into its own folder"),
    ]:
        assert run(["train", str(data), *OPEN, *words, "--out", str(tmp_path / "run")]) == 3
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["evaluate", "export", "index", "embed", "analyze"])
def test_a_run_without_a_model_says_how_to_get_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    config = RunConfig(str(folder), model={"backbone": "conv4", "crop": 16, "dim": 8})
    update_record(out, {"config": config.as_dict()})
    more = [str(folder), "--out", str(tmp_path / "x.npz")] if verb in ("index", "embed") else []
    assert run([verb, str(out), *more]) == 3
    wanted = f"{out}: has no trained model yet; resume with: cbml train --resume {out}"
    assert wanted in capsys.readouterr().err


@pytest.mark.slow
def test_bad_data_ends_all_processes_at_once(folder: Path, tmp_path: Path) -> None:
    words = ["train", str(small_folder(folder, 1)), *OPEN, "--out", str(tmp_path / "run")]
    command = [*PROGRAM, *words, "--processes", "2"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 3
    assert done.stderr.count("1 class to train on") == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_two_processes_end_where_one_does(folder: Path, tmp_path: Path) -> None:
    losses = []
    for count in ("1", "2"):
        out = tmp_path / count
        small = [*SMALL, "--set", "samples_per_class=4", "--set", "batch_norm=frozen_statistics"]
        words = ["train", str(folder), *small, "--out", str(out), "--processes", count]
        subprocess.run([*PROGRAM, *words], check=True, timeout=200)
        losses.append([line["loss"] for line in read_metrics(out) if "loss" in line])
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
