"""`cbml demo` on the real emoji: interrupted, gone on with, and shown again for nothing."""

import json
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
    assert heard[-1].endswith("resume with:  cbml demo --out demo --steps 6\n")
    done = subprocess.run(WORDS, cwd=tmp_path, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert "5,791 images of 844 classes never seen in training" in lines[0]
    assert lines[1] == "All of it in one page:  demo/report.html"
    assert [line.split()[:2] for line in lines[3:]] == [
        ["cbml", "serve"],
        ["cbml", "search"],
        ["cbml", "train"],
    ]
    search = [sys.executable, "-m", *lines[4].partition("#")[0].split()]
    assert (
        "✓" in subprocess.run(search, cwd=tmp_path, check=True, capture_output=True).stdout.decode()
    )
    again = subprocess.run(
        [*WORDS, "--json"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert again.stderr == ""
    assert json.loads(again.stdout)["reused"]


@pytest.mark.parametrize("words", [["--steps", "0"], ["--seed", "-1"]])
def test_numbers_out_of_range_are_refused_as_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", *words])
    assert end.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_the_way_to_go_on_can_be_copied_whatever_the_folder_is_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "demonstrate", stopped)
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", "my demo", "--steps", "6"])
    assert end.value.code == 130
    told = capsys.readouterr().err
    assert told.endswith("resume with:  cbml demo --out 'my demo' --steps 6\n")
