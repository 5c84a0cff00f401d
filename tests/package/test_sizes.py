"""Files, functions and signatures stay short enough to read, and no two modules need each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cbml

PACKAGE = Path(cbml.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 400
LONGEST_FUNCTION = 60
MOST_PARAMETERS = 10
LONGEST_VERB = 40

# An operator of torch takes plain values only, so its formula arrives in pieces.
OPERATORS = {"_evaluate"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def parameters(function: Function) -> int:
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(set(names) - {"self", "cls"})


def body_lines(function: Function) -> int:
    """Lines of a function without its signature and docstring."""
    first = function.body[-1] if len(function.body) < 2 else function.body[1]
    first = first if ast.get_docstring(function) else function.body[0]
    assert function.end_lineno is not None
    return function.end_lineno - first.lineno + 1


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """Modules that a file imports, at its top or within functions; not for type checkers alone."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for_types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and is_for_types(node)]
    unused = {id(inner) for node in for_types for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in unused:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & known
            found |= inner or {str(node.module)}
    return found & known


def mutual(imports: dict[str, set[str]]) -> set[tuple[str, str]]:
    return {
        (one, other)
        for one, others in imports.items()
        for other in others
        if one < other and one in imports.get(other, set())
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_functions_and_signatures_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES
    for function in functions(path):
        where = f"{path.name}:{function.lineno} {function.name}"
        assert body_lines(function) <= LONGEST_FUNCTION, where
        if function.name not in {"__init__", *OPERATORS} and path.parent.name != "cli":
            assert parameters(function) <= MOST_PARAMETERS, where


VERBS = sorted((PACKAGE / "cli").glob("*.py"))


@pytest.mark.parametrize("path", VERBS, ids=lambda path: path.stem)
def test_a_verb_is_a_thin_function_over_the_library(path: Path) -> None:
    for function in functions(path):
        if function.name == "verb":
            assert body_lines(function) <= LONGEST_VERB


def test_no_two_modules_import_each_other() -> None:
    names = {module_name(path): path for path in FILES}
    imports = {name: imported_modules(path, set(names)) for name, path in names.items()}
    assert not mutual(imports)


def test_no_two_packages_import_each_other() -> None:
    packages: dict[str, set[str]] = {}
    for path in FILES:
        name = module_name(path).split(".")
        if len(name) > 1:
            known = {module_name(file) for file in FILES}
            others = {one.split(".")[1] for one in imported_modules(path, known) if "." in one}
            packages.setdefault(name[1], set()).update(others - {name[1]})
    assert not mutual(packages)


def test_the_checks_see_what_they_forbid() -> None:
    tree = ast.parse('def f(a, b, *, c):\n    """Doc."""\n    x = 1\n    return x\n')
    (function,) = (node for node in ast.walk(tree) if isinstance(node, Function))
    assert parameters(function) == 3
    assert body_lines(function) == 2
    assert mutual({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == {("a", "b")}
