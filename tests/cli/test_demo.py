"""`cbml demo` on the real emoji: interrupted, gone on with, and shown again for nothing."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cbml import runs
from cbml.cli import main

WORDS = [sys.executable, "-m", "cbml", "demo", "--out", "demo", "--steps", "6"]


@pytest.mark.slow
def test_the_demo_goes_on_after_ctrl_c_and_is_shown_again(tmp_path: Path) -> None:
    with subprocess.Popen(WORDS, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        heard = []
        for line in child.stderr:
            heard.append(line)
            if line.startswith("2 of 4"):
                child.send_signal(signal.SIGINT)
        child.wait()
    assert child.returncode == 130
    assert heard[-1].endswith(" -m cbml demo --out demo --steps 6\n")
    done = subprocess.run(WORDS, cwd=tmp_path, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert "5,791 images of 844 classes never seen in training" in lines[0]
    assert lines[1] == "All of it in one page:  demo/report.html"
    assert [line.partition(" -m cbml ")[2].split()[0] for line in lines[3:]] == [
        "serve",
        "search",
        "train",
    ]
    search = shlex.split(lines[4].partition("#")[0])
    assert (
        "✓" in subprocess.run(search, cwd=tmp_path, check=True, capture_output=True).stdout.decode()
    )
    again = subprocess.run(
        [*WORDS, "--json"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert again.stderr == ""
    assert json.loads(again.stdout)["reused"]


def test_help_names_the_steps_of_a_first_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    steps = runs.FIRST_RUNS["cpu"]["emoji"].steps
    assert f"[default: ({steps});" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--steps", "0"], ["--seed", "-1"]])
def test_numbers_out_of_range_are_refused_as_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", *words])
    assert end.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143), SystemExit(129)])
def test_the_way_to_go_on_can_be_copied_whatever_stopped_it(
    stop: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*words: object, **more: object) -> None:
        raise stop

    script = tmp_path / ".venv" / "bin" / "cbml"
    script.parent.mkdir(parents=True)
    script.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/cbml"])
    monkeypatch.setattr(runs, "demonstrate", stopped)
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", "my demo", "--steps", "6"])
    assert end.value.code == getattr(stop, "code", 130)
    told = capsys.readouterr().err
    assert told.endswith("resume with:  .venv/bin/cbml demo --out 'my demo' --steps 6\n")
