"""What holds for every verb: exit codes, one-line errors, suggestions, interruption."""

import importlib
import os
import signal
import subprocess
import sys
import time

import pytest
import typer

from cbml import cli
from tests.fixtures import run_program

FAILING = """
import sys, types
from cbml import cli, errors
def verb() -> None:
    {body}
module = types.ModuleType("cbml.cli.trial")
module.verb = verb
sys.modules["cbml.cli.trial"] = module
cli.VERBS = ("trial", *cli.VERBS)
cli.main(["trial", *sys.argv[1:]])
"""


def run(body: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FAILING.format(body=body), *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("print('fine')", 0, ""),
        (
            "raise errors.BadData('7.jpg: not an image')",
            3,
            "cbml: 7.jpg: not an image\n",
        ),
        ("raise errors.DamagedFile('model: altered')", 4, "cbml: model: altered\n"),
        ("raise ValueError('crop must be positive')", 1, "cbml: crop must be positive\n"),
        (
            "raise errors.MissingExtra('timm', 'timm')",
            1,
            "cbml: the package 'timm' is not installed: run pip install 'cbml[timm]'\n",
        ),
        ("raise RuntimeError('odd')", 1, "cbml: RuntimeError: odd (add --debug to see where)\n"),
        ("raise ValueError('two\\nlines')", 1, "cbml: two lines\n"),
    ],
)
def test_errors_are_one_line_and_their_kind_is_the_exit_code(
    body: str, code: int, line: str
) -> None:
    result = run(body)
    assert (result.returncode, result.stderr) == (code, line)


@pytest.mark.parametrize(
    ("encoding", "printed"), [("ascii", rb"\xfc\udcff.jpg"), ("utf-8", b"\xc3\xbc\xff.jpg")]
)
def test_any_name_of_a_file_can_be_printed(encoding: str, printed: bytes) -> None:
    body = FAILING.format(body=r"print('\xfc\udcff.jpg')")
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    command = [sys.executable, "-c", body]
    result = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, printed, b"")


def test_debug_shows_where_an_error_came_from() -> None:
    result = run("raise errors.BadData('x')", "--debug")
    assert result.returncode == 3
    assert "Traceback" in result.stderr
    assert "errors.BadData: x" in result.stderr


def commands() -> list[str]:
    """Every verb, and every command of the verbs that are groups."""
    found = []
    for name in cli.VERBS:
        verb = importlib.import_module(f"cbml.cli.{name}").verb
        if isinstance(verb, typer.Typer):
            found += [f"{name} {command.name}" for command in verb.registered_commands]
        else:
            found.append(name)
    return found


@pytest.mark.parametrize("command", commands())
def test_each_command_has_help_with_two_examples(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cbml"])
    assert run_program([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Usage:" in shown
    assert shown.count(f"cbml {command}") >= 3, "the usage line and two examples"


def test_near_misses_are_suggested() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "cbml", "dat"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "Did you mean 'data'?" in result.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [("train emoji --procesess 2", "--processes"), ("search a b --min-probabilty 1", "--min-prob")],
)
def test_near_misses_of_options_are_suggested(words: str, meant: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "cbml", *words.split()], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert meant in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupted_verb_says_so_by_its_exit_code(number: int, code: int) -> None:
    body = "import time; print('ready', flush=True); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-c", FAILING.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1)
        child.send_signal(number)
        _, errors = child.communicate(timeout=20)
    assert child.returncode == code
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_what_fails_after_a_signal_failed_because_of_it(number: int, code: int) -> None:
    # As compiled code does that calls Python and replaces whatever exception comes out of it.
    body = f"""
    import os
    try:
        os.kill(os.getpid(), {int(number)})
    except BaseException:
        raise errors.DamagedFile("model: no shape") from None
"""
    result = run(body)
    assert result.returncode == code
    assert "no shape" not in result.stderr
