"""Ctrl-C and SIGTERM end `make test`, also while a test answers signals itself."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cbml

ROOT = Path(cbml.__file__).parent.parent
TESTS = """
import os, signal, time
from cbml.training.machine import stop_request

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
