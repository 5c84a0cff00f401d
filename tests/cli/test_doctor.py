"""`cbml doctor` finds what is here, and names what is broken with its remedy."""

import importlib
import json
import os
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

import cbml
from cbml.cli.doctor import print_machine
from cbml.runs import examine
from cbml.runs.doctor import find_browser
from tests.fixtures import run_program as run

METADATA = """\
Metadata-Version: 2.4
Name: cbml
Version: 0.1.0
Requires-Dist: numpy>=2
Requires-Dist: rich>=9999.1
Requires-Dist: absent-package>=1
Requires-Dist: torn>=1
Requires-Dist: safetensors>=0.6; extra == "here"
Requires-Dist: numpy>=9999; extra == "old"
Requires-Dist: cbml[here,old]; extra == "both"
Requires-Dist: absent-package>=1; extra == "dev"
"""


PIP = f"{Path(sys.executable).name} -m pip"  # of the Python that was called


def doctor(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    here = {"PYTHONPATH": str(Path(cbml.__file__).parent.parent)}
    here["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, "-m", "cbml", "doctor", *words],
        cwd=folder,
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_sound_installation_is_described_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    result = doctor(folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    kinds = ["cbml", "python", "packages", "machine", "gpu", "bfloat16", "browser", "extras"]
    firsts = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert firsts == [*kinds, "sets", "weights", "cache", "all"]
    assert f"{cbml.__version__} in {Path(cbml.__file__).parent}" in lines[0]
    assert max(len(line) for line in lines if "/" not in line) <= 100
    limited = "DEFAULT, ATEN_CPU_CAPABILITY=default, MKL_CBWR=COMPATIBLE"
    assert f"instruction sets: {limited}" in result.stdout


def test_a_browser_is_found_where_there_is_no_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = examine()["machine"]

    def shown() -> str:
        importlib.reload(webbrowser)  # it looks around once
        print_machine(machine, find_browser())
        return capsys.readouterr().out

    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "\nbrowser   none found\n" in shown()
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    (tmp_path / "chromium").chmod(0o755)
    assert "\nbrowser   chromium, but no screen\n" in shown()
    monkeypatch.setenv("DISPLAY", ":0")
    assert "\nbrowser   chromium\n" in shown()


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A folder whose packages make an installation that is broken in three ways."""
    for name, text in [("cbml-0.1.0", METADATA), ("torn-2.0", "Name: torn\nVersion: 2.0\n")]:
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info" / "METADATA").write_text(text)
    (tmp_path / "torn.py").write_text("raise OSError('libtorn.so:\\n not found')\n")
    return tmp_path


def test_a_broken_installation_is_named_with_its_remedy(torn: Path) -> None:
    result = doctor("--json", folder=torn)  # what lies in the present folder is found first
    assert result.returncode == 1
    assert result.stderr == ""
    found = json.loads(result.stdout)
    old, absent, broken = found["problems"]
    assert old.startswith("rich: version ")
    assert old.endswith(f"is too old; run  {PIP} install 'rich>=9999.1'")
    assert absent == f"absent-package: not installed; run  {PIP} install 'absent-package>=1'"
    assert "torn: 2.0 is installed and cannot be imported (libtorn.so: not found); run" in broken
    assert found["packages"]["numpy"] is not None
    assert found["packages"]["torn"] is None
    assert found["extras"] == {
        "here": {"missing": [], "install": f"{PIP} install 'cbml[here]'"},
        "old": {"missing": ["numpy"], "install": f"{PIP} install 'cbml[old]'"},
        "both": {"missing": ["numpy"], "install": f"{PIP} install 'cbml[both]'"},
    }


def test_sets_weights_and_caches_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sets" / "CUB_200_2011").mkdir(parents=True)
    (tmp_path / "cache" / "packed" / "deep").mkdir(parents=True)
    (tmp_path / "cache" / "packed" / "deep" / "pixels").write_bytes(bytes(1234))
    (tmp_path / "torch" / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "torch" / "hub" / "checkpoints" / "resnet50.pth").touch()
    monkeypatch.setenv("CBML_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    found = examine()
    assert found["problems"] == []
    assert found["sets"]["cub"]["path"] == str(tmp_path / "sets" / "CUB_200_2011")
    assert found["sets"]["sop"] == {"path": None, "remedy": "cbml data get sop"}
    assert found["weights"][-1]["name"] == "resnet50.pth"
    assert found["caches"]["parts"] == {"packed": 1234}
    assert json.loads(json.dumps(found)) == found


def test_a_cache_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "file" / "cache"))
    assert run(["doctor"]) == 1
    problem = capsys.readouterr().out.splitlines()[-1]
    assert problem.startswith("problem   ")
    assert "cannot be written (Not a directory); set CBML_CACHE" in problem
