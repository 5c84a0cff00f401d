"""Every line that is there to copy names the program as the user called it."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cbml
from cbml.cli import VERBS
from cbml.errors import MissingExtra
from cbml.program import command
from cbml.training.distributed import _command
from tests.fixtures import run_program as run
from tests.training.small import class_folders

PACKAGE = Path(cbml.__file__).parent
BARE = re.compile(rf"\bcbml (?:{'|'.join(VERBS)})\b")
# Words about the program, not lines to copy, and the name of a format.
SPOKEN = {
    "cli/evaluate.py": "as for cbml train.",  # help, as a manual spells it
    "cli/options.py": "Made by cbml index.",
    "cli/table.py": "`cbml reproduce --list` shows",
    "cli/train.py": "cbml methods lists",
    "gallery/gallery.py": "(cbml train and cbml analyze write",
    "gallery/service.py": "cbml serve",  # the title of the HTTP API
    "index/index.py": "cbml index 1",
    "gallery/page/index.html": "The same searches run as <code>cbml search</code>",
    "gallery/page/app.js": "printed where cbml serve was started",
    "gallery/page/api.js": "Is cbml serve still running?",
}


def messages(source: str) -> Iterator[str]:
    """Every string of a source but its docstrings."""
    tree = ast.parse(source)
    spoken = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # docstrings stand as statements
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in spoken and type(node.value) is str:
            yield node.value


def bare_commands(path: Path) -> list[str]:
    text = path.read_text()
    found = messages(text) if path.suffix == ".py" else (line.strip() for line in text.splitlines())
    known = SPOKEN.get(path.relative_to(PACKAGE).as_posix())
    return [one for one in found if BARE.search(one) and not (known and known in one)]


def test_no_message_spells_the_program_itself() -> None:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js"), *PACKAGE.rglob("*.html")]
    bare = {str(path): found for path in files if (found := bare_commands(path))}
    assert not bare, "write these with cbml.program.command, or the page's info.program"


def test_the_check_sees_a_bare_command() -> None:
    assert BARE.search(next(messages('say(f"resume with cbml train --resume {run}")')))
    assert not list(messages('"""As `cbml train` does."""'))


def test_packages_are_installed_where_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["somewhere/else"])
    assert str(MissingExtra("timm", "timm")).endswith("run  pip install 'cbml[timm]'")
    script = tmp_path / ".venv" / "bin" / "cbml"
    script.parent.mkdir(parents=True)
    script.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(sys, "argv", [".venv/bin/cbml"])
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    own = ".venv/bin/python -m pip install 'cbml[timm]'"
    assert str(MissingExtra("timm", "timm")).endswith(f"run  {own}")


def test_a_command_quotes_names_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["somewhere/else"])
    assert command("train", Path("my photos"), "--steps", 5) == "cbml train 'my photos' --steps 5"


SMALL = ["--backbone", "conv4", "--crop", "16", "--steps", "1", "--set", "dim=8"]


def test_lines_to_copy_work_in_a_new_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / ".venv" / "bin" / "cbml"
    script.parent.mkdir(parents=True)
    script.touch(0o755)
    monkeypatch.setattr(sys, "argv", [".venv/bin/cbml"])
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("CBML_DATA", str(tmp_path))
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    class_folders(Path("photos"))
    Path("empty").mkdir()
    calls = [
        ["data", "check", "photos"],
        ["train", "photos", *SMALL, "--out", "run"],
        ["index", "run", "photos", "--out", "gallery"],
        ["train", "run"],
        ["train", "gallery"],
        ["serve", "run"],
        ["serve", "missing"],
        ["search", "empty", "--id", "1"],
        ["evaluate", "empty"],
        ["evaluate", "run/model"],
        ["train", "cub"],
        ["data", "get", "inshop"],
        ["reproduce", "loss-ablation", "--data", "cub", "--out", "results"],
        ["reproduce", "loss-ablation", "--data", "cub", "--list"],
        ["doctor"],
    ]
    verbs = "|".join(VERBS)
    for words in calls:
        run(words)
        shown = capsys.readouterr()
        text = shown.out + shown.err
        assert re.search(rf"(?<![\w/])\.venv/bin/cbml (?:{verbs}) ", text), (words, text)
        assert not re.search(rf"(?<!/){BARE.pattern}", text), (words, text)
    report = Path("run", "report.html").read_text()
    assert len(re.findall(rf"\.venv/bin/cbml (?:{verbs}) ", report)) >= 3
    assert not re.search(rf"(?<!/){BARE.pattern}", report)


def test_one_of_several_processes_names_the_program_as_the_user_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / ".venv" / "bin" / "cbml"
    script.parent.mkdir(parents=True)
    script.touch(0o755)
    monkeypatch.setattr(sys, "argv", [".venv/bin/cbml"])
    words = _command(2, ["serve", "missing"])
    worker = words[words.index("--no-python") + 1 :]
    done = subprocess.run(worker, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ".venv/bin/cbml index" in done.stderr
