"""The wheel holds all that the program needs: templates, scripts, tables, type information."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cbml

ROOT = Path(cbml.__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content alone; what it depends on is installed already."""
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    # From a copy: building leaves a folder behind in the source tree.
    source = folder / "source"
    source.mkdir()
    for name in ("cbml", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    subprocess.run([*wheel, str(source)], check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("cbml-*.whl")
    target = folder / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(built)], check=True)
    return target


def python(installed: Path, *words: str) -> str:
    """What the program prints when only the wheel's content is on the path."""
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=installed.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_example_runs_from_the_wheel(installed: Path) -> None:
    assert python(installed, "-c", "import cbml; print(cbml.__file__)").startswith(str(installed))
    python(installed, str(ROOT / "examples" / "own_loop.py"))


def test_a_table_is_rendered_from_the_wheel(installed: Path) -> None:
    words = ("table", "loss-ablation", "--records", str(ROOT / "results"))
    assert "CBML" in python(installed, "-m", "cbml", *words)


def test_every_file_beside_the_code_is_in_the_wheel(installed: Path) -> None:
    def files(folder: Path) -> set[str]:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return {name for name in found if "__pycache__" not in name}

    assert files(ROOT / "cbml") == files(installed / "cbml")
