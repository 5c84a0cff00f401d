"""Imports go down only, and nothing that is loaded can run code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cbml

PACKAGE = Path(cbml.__file__).parent
ROOT = PACKAGE.parent

# The ground floor: single files below all rooms, which import no room themselves.
GROUND = {"errors", "files"}
GROUND_ROOMS: set[str] = {"losses", "data", "models", "index"}
MAY_IMPORT: dict[str, set[str]] = {
    "losses": set(),
    "data": set(),
    "models": set(),
    "index": set(),
    "bayes": {"losses", "index"},
    "evaluation": {"index"},
    "training": {"data", "models"},
    "pseudo": {"data", "models", "index", "training"},
    "experiments": GROUND_ROOMS | {"bayes", "evaluation", "training", "pseudo"},
    "gallery": {"data", "models", "index", "bayes"},
    "cli": GROUND_ROOMS | {"bayes", "evaluation", "training", "pseudo", "experiments", "gallery"},
}

FILES = sorted(PACKAGE.rglob("*.py"))


def imported_rooms(source: str) -> set[str]:
    """First name below `cbml` of everything a source imports from this package."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction: write the full name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            names.add(str(node.module))
    parts = [name.split(".") for name in names]
    return {words[1] for words in parts if words[0] == "cbml" and len(words) > 1}


def known_modules() -> set[str]:
    return {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imported = (imported_rooms(path.read_text()) & known_modules()) - {room}
    if room in {"__init__", "__main__"}:  # the front doors name every room, lazily
        return
    allowed = GROUND | MAY_IMPORT[room] if room not in GROUND else GROUND
    assert imported <= allowed, f"{room} may import {sorted(allowed)}, not {imported - allowed}"


def test_the_check_sees_a_wrong_import() -> None:
    assert "gallery" in imported_rooms("def f():\n    from cbml.gallery import serve\n")
    assert "cli" in imported_rooms("import cbml.cli.data\n")
    assert "losses" in imported_rooms("from cbml import losses\n")


def test_every_room_is_known() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(MAY_IMPORT)
    assert not rooms & {"utils", "common", "helpers", "core", "base"}


FORBIDDEN_CALLS = {"eval", "exec"}
FORBIDDEN_MODULES = {"pickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"}
FORBIDDEN_TEXTS = ("weights_only=False", "allow_pickle=True", "yaml.load(", "torch.export.load")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_that_is_loaded_can_run_code(path: Path) -> None:
    source = path.read_text()
    for text in FORBIDDEN_TEXTS:
        assert text not in source
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES
        if isinstance(node, ast.ImportFrom):
            assert str(node.module).split(".")[0] not in FORBIDDEN_MODULES


def test_help_and_front_door_import_nothing_heavy() -> None:
    code = (
        "import sys, cbml, cbml.cli\n"
        "try: cbml.cli.main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numpy', 'PIL', 'faiss', 'sklearn', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
