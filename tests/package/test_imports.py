"""Imports go down only, and nothing that is loaded can run code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cbml

PACKAGE = Path(cbml.__file__).parent
ROOT = PACKAGE.parent

# Level 0: single files that everybody may import.
FOUNDATION = {"errors", "files", "program", "progress", "query_gallery", "outputs", "regular"}
LEVEL_ONE = {"losses", "data", "models", "index", "report"}
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in LEVEL_ONE},
    "evaluation": {"index"},
    "bayes": {"losses", "index"},
    "training": {"data", "models"},
    "methods": (LEVEL_ONE - {"report"}) | {"evaluation", "bayes", "training"},
    "runs": LEVEL_ONE | {"evaluation", "bayes", "training", "methods"},
    "experiments": LEVEL_ONE | {"evaluation", "bayes", "training", "methods", "runs"},
    "gallery": {"data", "models", "index", "bayes", "report"},
}
MAY_IMPORT["cli"] = set(MAY_IMPORT)

FILES = sorted(PACKAGE.rglob("*.py"))


def imported_packages(source: str) -> set[str]:
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
    package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imported = (imported_packages(path.read_text()) & known_modules()) - {package}
    if package in {"__init__", "__main__"}:  # the front door names every package, lazily
        return
    allowed = FOUNDATION | MAY_IMPORT.get(package, set())
    assert imported <= allowed, f"{package} may import {sorted(allowed)}, not {imported - allowed}"


def test_the_check_sees_a_wrong_import() -> None:
    assert "gallery" in imported_packages("def f():\n    from cbml.gallery import serve\n")
    assert "cli" in imported_packages("import cbml.cli.data\n")
    assert "losses" in imported_packages("from cbml import losses\n")


def deep_imports(source: str, package: str) -> set[str]:
    """Modules inside another package that a source imports, past the package's front door."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    words = [name.split(".") for name in found]
    return {
        ".".join(name)
        for name in words
        if name[0] == "cbml" and len(name) > 2 and name[1] not in {package, "cli"}
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_other_packages_are_entered_by_the_front_door(path: Path) -> None:
    package = path.relative_to(PACKAGE).parts[0]
    assert not deep_imports(path.read_text(), package)


def test_the_check_sees_a_back_door() -> None:
    deep = "from cbml.data.decode import read_image\nimport cbml.losses.kernel\n"
    assert deep_imports(deep, "models") == {"cbml.data.decode", "cbml.losses.kernel"}
    assert deep_imports(deep, "data") == {"cbml.losses.kernel"}
    assert not deep_imports("from cbml.data import read_image\n", "models")


def test_every_package_is_known() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(MAY_IMPORT)


def test_no_name_says_nothing() -> None:
    names = {path.stem for path in FILES} | {path.parent.name for path in FILES}
    assert not names & {"utils", "common", "helpers", "core", "tools"}


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


def test_what_takes_as_long_as_torch_is_imported_where_it_is_used() -> None:
    code = (
        "import sys, cbml.runs, cbml.gallery\n"
        "from cbml import CBMLLoss, evaluate, fit, run\n"
        "heavy = {'sklearn', 'pandas', 'timm', 'torchvision', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
