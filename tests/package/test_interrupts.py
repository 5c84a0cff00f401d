"""Ctrl-C and SIGTERM end `make test`, also while a test answers signals itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cbml

ROOT = Path(cbml.__file__).parent.parent
TESTS = """
import os, signal, time
from cbml.training.signals import stop_request

def test_first():
    with stop_request() as request:
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.1)
        assert request.number

def test_second():
    open("second", "w").close()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_session(tmp_path: Path, name: str) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_two.py").write_text(TESTS.format(name=name))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert f"stopped by {signal.Signals[name].name}" in done.stdout
    assert not (tmp_path / "second").exists()


# More files than two workers take at once. Each says that it runs, has started a process, and
# answers the signal itself, as training does, so that nothing is raised in it.
LONG_TESTS = """
import os, signal, subprocess, time

def test_long():
    asked = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: asked.append(number))
    child = subprocess.Popen(["sleep", "600"])
    try:
        with open(f"began-{number}-{{os.getpid()}}-{{child.pid}}", "w"):
            pass
        while not asked:
            time.sleep(0.1)
    finally:
        child.kill()
        child.wait()

def test_next():
    with open("next-{number}", "w"):
        pass
"""


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_workers(tmp_path: Path, name: str) -> None:
    """A terminal sends Ctrl-C to every process of the group, as is done here."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(LONG_TESTS.format(number=number))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    process = subprocess.Popen(
        [*words, "--numprocesses", "2", "--dist", "loadfile"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 200
        while len(list(tmp_path.glob("began-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        began = [path.name.split("-") for path in tmp_path.glob("began-*")]
        assert len(began) == 2, "both workers run a test"
        os.killpg(process.pid, signal.Signals[name])
        said, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode != 0, said
    left = [int(one) for _, _, *numbers in began for one in numbers]
    until = time.monotonic() + 60
    while any(map(alive, left)) and time.monotonic() < until:
        time.sleep(0.05)  # SIGTERM ends the first process at once, and the workers follow it
    assert [one for one in left if alive(one)] == [], "workers and what they started have ended"
    assert len(list(tmp_path.glob("began-*"))) == 2, "no further test was begun"
    assert list(tmp_path.glob("next-*")) == []
