"""The documentation builds without a warning, and leaves no package out."""

import subprocess
import sys
from pathlib import Path

import pytest

import cbml

ROOT = Path(cbml.__file__).parent.parent


def test_every_package_is_in_the_reference() -> None:
    packages = {path.parent.name for path in (ROOT / "cbml").glob("*/__init__.py")} - {"cli"}
    listed = (ROOT / "docs" / "api.md").read_text().split("automodule:: cbml.")[1:]
    assert {text.split()[0] for text in listed} == packages


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="needs the extra docs")
    words = ["--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, "-d", str(tmp_path / "state"), "docs", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "api.html").read_text()
    assert 'id="cbml.losses.CBMLLoss"' in reference
    assert "target_mix" in reference
    assert (tmp_path / "decisions" / "0002-gradient-by-hand.html").exists()
    remote = [line for line in reference.splitlines() if 'src="http' in line]
    assert remote == [], "the site shows nothing from elsewhere"
