"""A folder has one worker at a time, whoever asks, and a dead one is followed at once."""

import os
import signal
import time
from pathlib import Path

import pytest

from cbml.experiments.running import lease
from tests.experiments import children

CONTENDERS = 6


def race(folder: Path, place: Path) -> int:
    """How many of several processes that ask in the same moment get the lease."""
    asking = [
        children.start(children.contend, folder, place, CONTENDERS) for _ in range(CONTENDERS)
    ]
    for child in asking:
        child.join(240)
        assert child.exitcode == 0
    return len(list((place / "won").iterdir()))


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_of_many_who_ask_one_gets_it(tmp_path: Path, rounds: int) -> None:
    folder = tmp_path / "run"  # from the second round on, others held it before
    for number in range(rounds):
        assert race(folder, tmp_path / str(number)) == 1


def test_a_living_process_keeps_its_lease_and_a_killed_one_is_followed(tmp_path: Path) -> None:
    child = children.start(children.hold, tmp_path / "run", tmp_path / "won")
    while child.is_alive() and not (tmp_path / "won").exists():
        time.sleep(0.001)
    with lease(tmp_path / "run") as held:
        assert not held
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    with lease(tmp_path / "run") as held:
        assert held
