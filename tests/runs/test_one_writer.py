"""A run folder has one writer: whoever comes second is refused with one line, or waits its turn."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cbml.cli import main
from cbml.errors import FolderInUse
from cbml.files import locked
from cbml.runs import RunConfig, note_test_evaluation, run
from cbml.training import Callback, read_metrics, read_record, update_record
from tests.program import Program
from tests.training import children
from tests.training.small import class_folders

LINE = "{}: another process is writing here; try again when it has finished"
ENDLESS = ["--steps", "50000", "--set", "checkpoint_every=50000", "--set", "validate_every=0"]
COUNT = "import sys; from pathlib import Path; from cbml.runs import note_test_evaluation as n; \
[n(Path(sys.argv[1])) for _ in range(int(sys.argv[2]))]"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run of two steps."""
    config = RunConfig(
        str(class_folders(tmp_path / "images")),
        model={"backbone": "conv4", "crop": 16, "dim": 8},
        training={"steps": 2, "classes_per_batch": 3, "samples_per_class": 3},
    )
    run(config, tmp_path / "run", callback=Callback())
    return tmp_path / "run"


@pytest.fixture
def training(out: Path) -> Iterator[Program]:
    """The run, resumed for so many steps that it will be at work for the whole test."""
    child = Program("train", "--resume", out, *ENDLESS)
    while child.poll() is None and max(line["step"] for line in read_metrics(out)) < 4:
        time.sleep(0.05)
    yield child
    child.kill()
    child.communicate()


@pytest.mark.parametrize(
    "more", [[], pytest.param(["--processes", "2"], marks=pytest.mark.slow)], ids=["one", "two"]
)
def test_a_run_that_is_being_trained_is_not_resumed(
    out: Path, training: Program, more: list[str]
) -> None:
    second = Program("train", "--resume", out, "--steps", "5", *more)
    error = second.communicate(timeout=120)[1]
    assert second.returncode == 3
    assert error == f"cbml: {LINE.format(out)}\n"
    assert training.poll() is None, "the first is not disturbed"
    training.send_signal(signal.SIGTERM)
    training.communicate(timeout=60)
    steps = max(line["step"] for line in read_metrics(out)) + 2
    third = Program("train", "--resume", out, "--steps", str(steps))
    error = third.communicate(timeout=120)[1]
    assert third.returncode == 0, error


def resume(out: Path, log: Path) -> None:
    """The program in a process that has torch already, so that two of them start at once."""
    sys.stderr = log.open("w", buffering=1)
    main(["train", "--resume", str(out), *ENDLESS])


@pytest.mark.parametrize("pairs", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_of_two_that_resume_at_once_one_is_refused(out: Path, tmp_path: Path, pairs: int) -> None:
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    for _ in range(pairs):
        both = [children.start(resume, out, log) for log in logs]
        while all(child.is_alive() for child in both):
            time.sleep(0.05)
        for child in both:
            child.terminate()
            child.join(100)
        errors = [log.read_text() for log in logs]
        assert sorted(child.exitcode or 0 for child in both) == [3, 143], errors
        assert f"cbml: {LINE.format(out)}\n" in errors
        done = [line["step"] for line in read_metrics(out) if "loss" in line]
        assert done == sorted(set(done)), "each step has one line"


def test_test_evaluations_wait_for_each_other(tmp_path: Path) -> None:
    update_record(tmp_path, {"config": {}})
    counting = [Program(tmp_path, "20", code=COUNT) for _ in range(3)]
    said = [child.communicate(timeout=120) for child in counting]
    assert [child.returncode for child in counting] == [0, 0, 0], said
    assert read_record(tmp_path)["test_evaluations"] == 60


def test_a_test_evaluation_of_a_run_in_training_is_refused(
    out: Path, training: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert training.poll() is None
    monkeypatch.setattr("cbml.runs.evaluate._TURN", 0.2)
    with pytest.raises(FolderInUse):
        note_test_evaluation(out)


def test_what_cannot_be_trained_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no images"):
        run(RunConfig(str(tmp_path / "empty")), tmp_path / "run", callback=Callback())
    with pytest.raises(ValueError, match=r"no run\.json"):
        run(RunConfig("emoji"), tmp_path / "run", resume=True, callback=Callback())
    assert not (tmp_path / "run").exists()


def test_a_call_within_the_run_may_write(out: Path) -> None:
    with locked(out):
        note_test_evaluation(out)
    assert read_record(out)["test_evaluations"] == 1
