"""The wheel holds all that the program needs: templates, scripts, tables, type information."""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
    python(installed, str(ROOT / "examples" / "own_loop.py"), "--epochs", "2")


def test_a_table_is_rendered_from_the_wheel(installed: Path) -> None:
    words = ("table", "loss-ablation", "--records", str(ROOT / "results"))
    assert "CBML" in python(installed, "-m", "cbml", *words)


def test_the_page_is_served_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(4):
        pixels = random.integers(0, 255, (20, 20, 3), dtype=np.uint8)
        folder = tmp_path / "images" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    gallery = str(tmp_path / "gallery")
    python(installed, "-m", "cbml", "index", "conv4", str(tmp_path / "images"), "--out", gallery)
    serving = subprocess.Popen(
        [sys.executable, "-m", "cbml", "serve", gallery, "--port", "0"],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=installed.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert serving.stderr is not None
    try:
        said = serving.stderr.readline()
        address = re.search(r"http://\S+/", said)
        assert address is not None, said
        page = urllib.request.urlopen(address[0], timeout=60).read().decode()
        files = re.findall(r'(?:src|href)="/?([\w./-]+\.(?:js|css))"', page)
        assert files
        for name in files:
            assert urllib.request.urlopen(address[0] + name, timeout=60).read()
    finally:
        serving.terminate()
        serving.communicate()


@pytest.mark.slow
def test_the_wheel_runs_in_an_environment_made_from_nothing(
    installed: Path, tmp_path: Path
) -> None:
    """What a user installs: the locked dependencies, every file checked by its hash."""
    (wheel,) = installed.parent.glob("cbml-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "new")], check=True)
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*words: str) -> None:
        command = [str(tmp_path / "new" / "bin" / words[0]), *words[1:]]
        subprocess.run(command, cwd=tmp_path, env=own, check=True)

    lock = str(ROOT / "requirements-demo.lock")
    run("python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock)
    run("python", "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))
    run("cbml", "demo", "--out", "demo", "--steps", "2")
    assert (tmp_path / "demo" / "report.html").is_file()


def test_every_file_beside_the_code_is_in_the_wheel(installed: Path) -> None:
    def files(folder: Path) -> set[str]:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return {name for name in found if "__pycache__" not in name}

    assert files(ROOT / "cbml") == files(installed / "cbml")
