"""Only regular files are opened, and everything that is opened is opened in one place."""

import ast
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import cbml
from cbml.files import locked, replaced_file, sha256, write_csv, write_json
from cbml.regular import SpecialFile, check_regular, open_regular, read_file, read_text

PACKAGE = Path(cbml.__file__).parent

pytestmark = pytest.mark.timeout(60)  # what waits for a pipe waits for ever


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)  # a socket's whole path may have 108 characters
        listener.bind(path.name)


MAKERS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": bind,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/full"),  # whatever is written to it fails
    "symbolic links": lambda path: path.symlink_to(path.name),
}
OPENERS: dict[str, Callable[[Path], object]] = {
    "rb": open_regular,
    "wb": lambda path: open_regular(path, "wb"),
    "ab": lambda path: open_regular(path, "ab"),
    "a+b": lambda path: open_regular(path, "a+b"),
    "bytes": read_file,
    "text": read_text,
    "check": check_regular,
    "hash": sha256,
    "JSON": lambda path: write_json(path, {}),
    "CSV": lambda path: write_csv(path, ["a"], []),
}


@pytest.mark.parametrize("how", OPENERS)
@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_no_regular_file_is_refused_by_name(tmp_path: Path, kind: str, how: str) -> None:
    path = tmp_path / "file"
    MAKERS[kind](path)
    with pytest.raises(OSError, match=kind) as refusal:
        OPENERS[how](path)
    assert refusal.value.filename in (str(path), "/dev/full")
    assert not list(tmp_path.glob(".*"))


def test_a_device_behind_a_link_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[object] = []
    monkeypatch.setattr(os, "replace", lambda *names: replaced.append(names))
    (tmp_path / "report.html").symlink_to("/dev/full")
    with (
        pytest.raises(SpecialFile, match="a device, not a regular file; move it away"),
        replaced_file(tmp_path / "report.html") as temporary,
    ):
        temporary.write_text("page")
    assert not replaced


def test_what_changes_its_kind_before_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)
    monkeypatch.setattr("cbml.regular.check_regular", lambda path: None)
    with pytest.raises(SpecialFile, match="a named pipe"):
        open_regular(path)
    with pytest.raises(OSError, match="No such device"):  # nobody reads it
        open_regular(path, "ab")


def test_regular_files_are_read_and_written_as_ever(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(path.name)
    check_regular(path)
    with open_regular(link, "ab") as file:
        file.write("é".encode())
    with open_regular(path, "a+b") as file:
        file.write(b"\xff")
    assert read_file(link) == "é".encode() + b"\xff"
    assert read_text(path, errors="replace") == "é\ufffd"
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


def umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


@pytest.mark.parametrize("kind", MAKERS)
def test_a_lock_is_had_or_refused_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    MAKERS[kind](tmp_path / ".lock")
    refused = (
        contextlib.nullcontext() if kind == "a named pipe" else pytest.raises(OSError, match="lock")
    )
    with refused, locked(tmp_path, wait=0):
        pass


# Files of ours alone: parts of the package, temporary files that were made a moment ago, members of
# an archive, the null device, and what the kernel says of the machine.
ALLOWED = {
    ("regular.py", "open"),
    ("files.py", "temporary.open"),
    ("cli/__init__.py", "open"),
    ("cli/serve.py", "webbrowser.open"),
    ("data/archives.py", "opened.open"),
    ("data/archives.py", "place.open"),
    ("data/archives.py", "tarfile.open"),
    ("data/decode.py", "Image.open"),
    ("data/folder.py", "Image.open"),
    ("data/discovery.py", "(resources.files('cbml.data.catalog') / name).read_text"),
    ("experiments/leaderboard.py", "Path(__file__).with_name('leaderboard.json').read_text"),
    ("experiments/rows.py", "path.open"),
    ("gallery/export.py", "path.open"),
    ("gallery/export.py", "temporary.open"),
    ("gallery/service.py", "file.read_bytes"),
    ("training/machine.py", "Path('/proc/cpuinfo').read_text"),
    ("training/machine.py", "Path(path).read_text"),
}


def opened(source: str) -> set[str]:
    """What a source opens by other means than those of `cbml.regular`."""
    return {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == "open")
            or (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in {"open", "read_text", "read_bytes", "fromfile", "loadtxt"}
                and ast.unparse(node.func) != "os.open"
            )
        )
    }


def test_everything_is_opened_in_one_place() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), call)
        for path in PACKAGE.rglob("*.py")
        for call in opened(path.read_text(encoding="utf-8"))
    }
    assert found - ALLOWED == set()
    assert ALLOWED - found == set(), "no longer needed"


def test_the_check_sees_what_it_forbids() -> None:
    source = "open(a)\n(b / c).read_text()\nd.open('rb')\nread_text(e)\nos.open(f)\n"
    assert opened(source) == {"open", "(b / c).read_text", "d.open"}
