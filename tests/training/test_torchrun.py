"""Real processes under torchrun: one is killed, and the run resumes or ends in order."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor
from torch.distributed.launcher.api import LaunchConfig

from cbml.errors import stop
from cbml.training import Distributed, read_metrics
from cbml.training import distributed as processes
from cbml.training.checkpoints import newest_checkpoint
from tests.training.small import class_folders

WORKER = [sys.executable, "-c", "from cbml.cli import main; main()"]
STEPS = 120
WORDS = [
    *("--backbone", "conv4", "--crop", "16", "--steps", str(STEPS), "--set", "dim=8"),
    *("--set", "classes_per_batch=3", "--set", "samples_per_class=4"),
    *("--set", "batch_norm=frozen_statistics", "--set", "validate_every=0"),
    *("--set", "checkpoint_every=2"),
]


def torchrun(restarts: int) -> list[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    return [*words, "--nproc-per-node", "2", "--max-restarts", str(restarts), *WORKER]


class Job:
    """A run in its own processes, whose standard error is kept."""

    def __init__(self, command: list[str], home: Path) -> None:
        self.log = home / "stderr.txt"
        environment = {
            **os.environ,
            "CBML_CACHE": str(home.parent / "cache"),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with self.log.open("w") as log:
            self.child = subprocess.Popen(
                command, env=environment, stderr=log, stdout=log, start_new_session=True
            )
        self.seen: dict[int, psutil.Process] = {}

    def workers(self) -> dict[int, psutil.Process]:
        """The training processes by rank."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.Process(self.child.pid).children(recursive=True):
            try:
                rank = process.environ().get("RANK")
            except psutil.Error:
                continue
            self.seen[process.pid] = process
            if rank is not None:
                found[int(rank)] = process
        return found

    def wait_for_a_step(self, run: Path) -> None:
        while not any("loss" in line for line in read_metrics(run)):
            assert self.child.poll() is None, self.log.read_text()
            time.sleep(0.01)

    def kill_in(self, run: Path, rank: int) -> None:
        """Send -9 to one process once there is a checkpoint to go on from.

        On a busy machine the run may have ended before this process has its turn again.
        """
        while not any(run.glob("checkpoints/step-*/manifest.json")):
            assert self.child.poll() is None, self.log.read_text()
            time.sleep(0.01)
        with contextlib.suppress(KeyError, psutil.NoSuchProcess):
            self.workers()[rank].send_signal(signal.SIGKILL)

    def end(self, seconds: float) -> int:
        return self.child.wait(timeout=seconds)

    def orphans(self) -> list[psutil.Process]:
        return [process for process in self.seen.values() if process.is_running()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        if job.child.poll() is None:
            job.child.kill()
        for process in job.orphans():
            process.kill()
        job.child.wait()


def words(folder: Path, out: Path) -> list[str]:
    return ["train", str(folder), *WORDS, "--out", str(out)]


def weights(run: Path) -> dict[str, Tensor]:
    checkpoint = newest_checkpoint(run / "checkpoints", print)
    assert checkpoint is not None
    assert checkpoint.step == STEPS
    # Nobody draws from these two, so that nobody seeds them: each process begins with its own.
    unused = ("random.python", "random.numpy")
    return {name: value for name, value in checkpoint.tensors.items() if name not in unused}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert not [name for name in first if not torch.equal(first[name], second[name])]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The weights of a run that nobody disturbed."""
    home = tmp_path_factory.mktemp("unbroken")
    job = Job([*torchrun(0), *words(class_folders(home / "images"), home / "run")], home)
    assert job.end(900) == 0, job.log.read_text()
    assert "resumed after step" not in job.log.read_text()
    return weights(home / "run")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("starter", ["torchrun", "cbml"])
def test_a_killed_process_is_started_again_and_nothing_is_lost(
    home: Path, jobs: list[Job], unbroken: dict[str, Tensor], starter: str, rank: int
) -> None:
    images = class_folders(home / "images")
    for out in (home / f"run{number}" for number in range(5)):
        told = words(images, out)
        by_itself = [*WORKER, *told, "--processes", "2"]
        job = Job([*torchrun(1), *told] if starter == "torchrun" else by_itself, home)
        jobs.append(job)
        job.kill_in(out, rank)
        assert job.end(300) == 0, job.log.read_text()
        assert not job.orphans()
        assert_equal(weights(out), unbroken)
        if "resumed after step" in job.log.read_text():
            return
    pytest.fail("the runs are over before anybody is killed")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_restart_all_end_with_a_line(home: Path, jobs: list[Job], rank: int) -> None:
    folder, out = class_folders(home / "images"), home / "run"
    job = Job([*torchrun(0), *words(folder, out), "--set", "steps=1000000"], home)
    jobs.append(job)
    job.kill_in(out, rank)
    killed = time.monotonic()
    assert job.end(60) == 1, job.log.read_text()
    assert time.monotonic() - killed < 60
    assert not job.orphans()
    wanted = f"cbml: another process was lost; resume with: cbml train --resume {out} --processes 2"
    assert wanted in job.log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_launcher_passes_signals_on(
    home: Path, jobs: list[Job], number: signal.Signals
) -> None:
    folder, out = class_folders(home / "images"), home / "run"
    command = [*WORKER, *words(folder, out), "--set", "steps=1000000", "--processes", "2"]
    job = Job(command, home)
    jobs.append(job)
    job.wait_for_a_step(out)
    job.workers()
    job.child.send_signal(number)
    assert job.end(120) == 128 + number, job.log.read_text()
    assert not job.orphans()
    last = job.log.read_text().strip().splitlines()[-1]
    assert last.endswith(f"resume with:  cbml train --resume {out} --processes 2")
    checkpoint = newest_checkpoint(out / "checkpoints", print)
    assert checkpoint is not None
    more = ["--steps", str(checkpoint.step + 2), "--processes", "2"]
    again = Job([*WORKER, "train", "--resume", str(out), *more], home)
    jobs.append(again)
    assert again.end(1200) == 0, again.log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_step_that_takes_long_after_a_signal_is_waited_for(home: Path, jobs: list[Job]) -> None:
    folder, out = class_folders(home / "images"), home / "run"
    steps = ["--set", "steps=1000000", "--set", "checkpoint_every=0", "--processes", "2"]
    job = Job([*WORKER, *words(folder, out), *steps], home)
    jobs.append(job)
    job.wait_for_a_step(out)
    slow = job.workers()[1]
    slow.send_signal(signal.SIGSTOP)
    job.child.send_signal(signal.SIGINT)
    time.sleep(45)  # torchrun itself would wait for 30
    assert job.child.poll() is None, job.log.read_text()
    assert "stopping after this step; again to stop now" in job.log.read_text()
    slow.send_signal(signal.SIGCONT)
    assert job.end(600) == 130, job.log.read_text()
    assert newest_checkpoint(out / "checkpoints", print) is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_asked_again_all_processes_end_at_once(home: Path, jobs: list[Job]) -> None:
    folder, out = class_folders(home / "images"), home / "run"
    steps = ["--set", "steps=1000000", "--processes", "2"]
    job = Job([*WORKER, *words(folder, out), *steps], home)
    jobs.append(job)
    job.wait_for_a_step(out)
    job.workers()[1].send_signal(signal.SIGSTOP)  # so that nobody ends by itself
    for _ in range(3):  # the second one may be an echo
        job.child.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert job.end(60) == 130, job.log.read_text()
    psutil.wait_procs(job.seen.values(), timeout=60)
    assert not job.orphans()
    last = job.log.read_text().strip().splitlines()[-1]
    assert last.endswith(f"resume with:  cbml train --resume {out} --processes 2")


def test_torchrun_is_told_to_wait_for_a_long_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in processes._environment(2, tmp_path / "word").items():
        monkeypatch.setenv(name, value)
    assert LaunchConfig(1, 1, 2).shutdown_timeout == 3600


def test_the_first_last_word_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = tmp_path / "last-word.json"
    monkeypatch.setenv("CBML_LAST_WORD", str(word))
    for reason in ("no images", "its file was being read when the process was ended"):
        with pytest.raises(ValueError, match=reason), processes.last_word(lambda error: 3):
            raise ValueError(reason)
    assert json.loads(word.read_text()) == {"code": 3, "text": "cbml: no images"}


def test_what_fails_after_a_signal_is_no_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tmp_path / "last-word.json"
    monkeypatch.setenv("CBML_LAST_WORD", str(word))
    monkeypatch.setattr("cbml.errors._received", [])
    with pytest.raises(SystemExit):
        stop(signal.SIGTERM, None)
    with pytest.raises(ValueError, match="damaged"), processes.last_word(lambda error: 4):
        raise ValueError("damaged")
    assert not word.exists(), "a process that was ended does not keep the others from starting anew"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_launcher_leaves_nobody_behind(home: Path, jobs: list[Job]) -> None:
    folder, out = class_folders(home / "images"), home / "run"
    command = [*WORKER, *words(folder, out), "--set", "steps=1000000", "--processes", "2"]
    job = Job(command, home)
    jobs.append(job)
    job.wait_for_a_step(out)
    assert len(job.workers()) == 2
    job.child.kill()
    psutil.wait_procs(job.seen.values(), timeout=60)
    assert not job.orphans()
    assert newest_checkpoint(out / "checkpoints", print) is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_torchrun_ends_the_run_in_order(home: Path, jobs: list[Job]) -> None:
    folder, out = class_folders(home / "images"), home / "run"
    command = [*WORKER, *words(folder, out), "--set", "steps=1000000", "--processes", "2"]
    job = Job(command, home)
    jobs.append(job)
    job.wait_for_a_step(out)
    torchrun = job.workers()[0].parent()
    assert torchrun is not None
    assert torchrun.pid != job.child.pid
    torchrun.kill()
    assert job.end(60) == 1, job.log.read_text()
    psutil.wait_procs(job.seen.values(), timeout=60)
    assert not job.orphans()
    assert "cbml: torchrun was ended by SIGKILL; resume with:  cbml train" in job.log.read_text()


def test_a_long_wait_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "_LONG_WAIT", 0.2)
    monkeypatch.setattr(processes, "_LOOK", 0.02)
    distributed = Distributed()
    with processes._said_aloud(distributed):
        with distributed._waiting():
            time.sleep(0.05)
        time.sleep(0.4)  # at work, not waiting
        assert capsys.readouterr().err == ""
        with distributed._waiting():
            time.sleep(0.6)
    assert capsys.readouterr().err.count("process 0 has waited 0 s for another one") == 1


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_stopped_process_is_said_aloud_and_the_run_ends_as_undisturbed(
    home: Path, jobs: list[Job], unbroken: dict[str, Tensor]
) -> None:
    folder, out = class_folders(home / "images"), home / "run"
    line = "process 0 has waited 60 s for another one"
    job = Job([*torchrun(0), *words(folder, out)], home)
    jobs.append(job)
    while not any(out.glob("checkpoints/step-*/manifest.json")):
        assert job.child.poll() is None, job.log.read_text()
        time.sleep(0.01)
    stopped = job.workers()[1]
    stopped.send_signal(signal.SIGSTOP)
    said = job.log.read_text().count(line)  # at the start, perhaps, on a busy machine
    done = len(read_metrics(out))
    time.sleep(120)
    assert job.log.read_text().count(line) == said + 1
    assert job.child.poll() is None
    assert len(read_metrics(out)) <= done + 1 < STEPS, "the run waits for it"
    stopped.send_signal(signal.SIGCONT)
    assert job.end(900) == 0, job.log.read_text()
    assert not job.orphans()
    assert "resumed after step" not in job.log.read_text(), "it was not started again"
    assert_equal(weights(out), unbroken)
