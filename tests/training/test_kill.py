"""Killed or interrupted, a run resumes and ends with the weights of the unbroken one."""

import contextlib
import os
import random
import signal
import socket
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cbml.data import ImageDataset
from cbml.training import Settings, signals
from cbml.training.checkpoints import newest_checkpoint
from tests.training import children
from tests.training.small import make_images

SETTINGS = Settings(steps=9, checkpoint_every=1, keep_checkpoints=2)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return make_images(tmp_path_factory.mktemp("images"))


def weights(folder: Path) -> dict[str, Tensor]:
    checkpoint = newest_checkpoint(folder / "checkpoints", print)
    assert checkpoint is not None
    assert checkpoint.step == SETTINGS.steps
    # Python seeds its own generator again in each process that starts from the first step.
    return {n: value for n, value in checkpoint.tensors.items() if n != "random.python"}


@pytest.fixture(scope="module")
def unbroken(images: ImageDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    child = children.start(children.train, images, folder, SETTINGS)
    child.join(120)
    assert child.exitcode == 0
    return weights(folder)


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert not [name for name in first if not torch.equal(first[name], second[name])]


def wait_for_record(child: BaseProcess, folder: Path) -> None:
    while child.is_alive() and not (folder / "run.json").exists():
        time.sleep(0.005)


def kill_until_done(images: ImageDataset, folder: Path, chance: random.Random, kills: int) -> int:
    """Start and kill a run until that has happened `kills` times, then let it finish."""
    done = 0
    while True:
        child = children.start(children.train, images, folder, SETTINGS)
        wait_for_record(child, folder)
        if done < kills:
            child.join(chance.uniform(0.0, 0.25))
        else:
            child.join(120)
        if child.exitcode == 0:
            return done
        assert child.exitcode is None, "it must not fail by itself"
        assert done < kills, "it hangs"
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        done += 1


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_kill_at_random_moments_loses_nothing(
    images: ImageDataset, unbroken: dict[str, Tensor], tmp_path: Path, kills: int
) -> None:
    chance, done, number = random.Random(4), 0, 0
    while done < kills:
        folder = tmp_path / str(number)
        done += kill_until_done(images, folder, chance, min(4, kills - done))
        assert_equal(weights(folder), unbroken)
        number += 1


CASES = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("number", "code"), CASES)
@pytest.mark.parametrize("moments", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_signals_end_a_run_in_order(
    images: ImageDataset,
    unbroken: dict[str, Tensor],
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    moments: int,
) -> None:
    chance, seen, number_of_run = random.Random(int(number)), 0, 0
    settings = Settings(**(SETTINGS.as_dict() | {"checkpoint_every": 0}))
    while seen < moments:
        folder = tmp_path / str(number_of_run)
        number_of_run += 1
        assert number_of_run <= 3 * moments, "the runs are over before the signals come"
        child = children.start(children.train, images, folder, settings)
        while child.is_alive() and not (folder / "metrics.jsonl").exists():
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.05))
        os.kill(child.pid or 0, number)
        child.join(60)
        assert child.exitcode in (0, code), "0 only where the run was quicker than the signal"
        seen += child.exitcode == code
        assert newest_checkpoint(folder / "checkpoints", print) is not None
        child = children.start(children.train, images, folder, settings)
        child.join(60)
        assert child.exitcode == 0
        assert_equal(weights(folder), unbroken)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


AT_ONCE, LATER = 0.1, 3.0
# The signals of one request, and how long after the one before it each comes; whether the last one
# stops the run at once, and how many lines answer.
REQUESTS = {
    "one press": ([(signal.SIGINT, 0.0)], False, 1),
    "a second press": ([(signal.SIGINT, 0.0), (signal.SIGINT, LATER)], True, 1),
    "a press and its echo": ([(signal.SIGINT, 0.0), (signal.SIGINT, AT_ONCE)], False, 2),
    "three presses": ([(signal.SIGINT, 0.0), *[(signal.SIGINT, AT_ONCE)] * 2], True, 2),
    "an echo, and a press": (
        [(signal.SIGINT, 0.0), (signal.SIGINT, AT_ONCE), (signal.SIGINT, LATER)],
        True,
        2,
    ),
    "a closed terminal": (
        [(signal.SIGHUP, 0.0), (signal.SIGHUP, AT_ONCE), (signal.SIGTERM, AT_ONCE)],
        False,
        1,
    ),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_what_is_asked_again_stops_at_once_and_an_echo_does_not(
    request_: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sent, at_once, answers = REQUESTS[request_]
    monkeypatch.setattr(signals, "time", clock := Clock())
    asked = signals.StopRequest()
    for number, after in sent[:-1]:
        clock.now += after
        asked.ask(number)
    clock.now += sent[-1][1]
    with pytest.raises(KeyboardInterrupt) if at_once else contextlib.nullcontext():
        asked.ask(sent[-1][0])
    assert asked.number == sent[0][0]
    said = capfd.readouterr().err
    assert said.count("stopping after this step; ") == answers, said
    assert said.count("again to stop now") == answers, said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_pair(images: ImageDataset, folder: Path, settings: Settings) -> list[BaseProcess]:
    port = free_port()
    return [
        children.start(children.train, images, folder, settings, rank, 2, port) for rank in range(2)
    ]


def finish_pair(images: ImageDataset, folder: Path) -> dict[str, Tensor]:
    pair = start_pair(images, folder, SETTINGS)
    for child in pair:
        child.join(60)
    assert [child.exitcode for child in pair] == [0, 0]
    return weights(folder)


def test_a_lost_process_is_noticed_and_the_run_goes_on(
    images: ImageDataset, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    endless = Settings(**(SETTINGS.as_dict() | {"steps": 100_000, "keep_checkpoints": 10**6}))
    pair = start_pair(images, folder, endless)
    try:
        while not (folder / "checkpoints" / "step-000000003" / "manifest.json").exists():
            assert all(child.is_alive() for child in pair)
            time.sleep(0.01)
        os.kill(pair[1].pid or 0, signal.SIGKILL)
        pair[0].join(60)
        assert pair[0].exitcode not in (None, 0), "the survivor hangs"
    finally:
        for child in pair:
            child.kill()
    for checkpoint in (folder / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > 3:
            (checkpoint / "manifest.json").unlink(missing_ok=True)
    assert_equal(finish_pair(images, folder), finish_pair(images, tmp_path / "unbroken"))


def test_another_number_of_processes_is_refused(images: ImageDataset, tmp_path: Path) -> None:
    finish_pair(images, tmp_path / "run")
    child = children.start(children.train, images, tmp_path / "run", SETTINGS)
    child.join(60)
    assert child.exitcode == 1
