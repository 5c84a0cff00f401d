"""How large the package is, and how many of its files one command runs through.

    python benchmarks/structure.py                          files, lines, exported names
    python benchmarks/structure.py train my-images/ ...     the same, and the files of `cbml train`

A file counts as crossed by a command when one of its functions is called, in this process or in a
thread of it; that a file is imported does not count. Nothing is timed.
"""

import ast
import inspect
import sys
import threading
from pathlib import Path
from types import FrameType

import cbml

PACKAGE = Path(cbml.__file__).parent


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def exported_names() -> int:
    """Names that `cbml` and its subpackages offer, those offered twice counted once."""
    found: set[tuple[str, str]] = set()
    for stub in PACKAGE.rglob("__init__.pyi"):
        for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                found |= {(str(node.module).split(".")[-1], alias.name) for alias in node.names}
    return len(found)


def crossed_files(words: list[str]) -> set[str]:
    """Files of the package of which the command calls a function."""
    from cbml.cli import main

    root, found = str(PACKAGE), set[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        del argument
        code = frame.f_code
        # Bodies of modules and classes run at import: they are not optimized, functions are.
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED:
            path = code.co_filename
            if path.startswith(root) and path.endswith(".py"):
                found.add(path.removeprefix(root).lstrip("/"))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    sizes = sorted(map(lines, files))
    print(f"files {len(files)}, lines {sum(sizes):,}, longest file {sizes[-1]}")
    print(f"shorter than 60 lines {sum(size < 60 for size in sizes)}, exported {exported_names()}")
    if sys.argv[1:]:
        found = crossed_files(sys.argv[1:])
        print(f"files crossed by cbml {' '.join(sys.argv[1:])}: {len(found)}")
        print(*sorted(found), sep="\n")


if __name__ == "__main__":
    main()
