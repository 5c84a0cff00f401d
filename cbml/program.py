"""How this program is called from where the user stands, for every line that is there to copy."""

import os
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["command", "installation", "program_name"]


def command(*words: object) -> str:
    """A line to copy into a terminal.

    Args:
        words: What follows the program's name; names of files are quoted where a shell needs it.
    """
    return f"{program_name()} {shlex.join(map(str, words))}"


def installation(package: str, *options: str) -> str:
    """The line that installs a package where this program runs, not where PATH leads.

    Args:
        package: What pip is asked for, such as "cbml[demo]".
        options: Words before it.
    """
    own = program_name() == "cbml"
    pip = ["pip"] if own else [_short(sys.executable), "-m", "pip"]
    return " ".join([*pip, "install", *options, f"'{package}'"])


def program_name() -> str:
    """The program as the user called it: `cbml` where PATH leads to it, else its path."""
    called = Path(sys.argv[0])
    if called.parts[-2:] == ("cbml", "__main__.py"):  # python -m cbml
        return f"{_short(sys.executable)} -m cbml"
    return _short(sys.argv[0]) if called.name == "cbml" and called.exists() else "cbml"


def _short(program: str) -> str:
    """The name of a program where PATH leads to it, else the shorter of its paths."""
    name = os.path.basename(program)
    found = shutil.which(name)
    if found is not None and os.path.abspath(found) == os.path.abspath(program):
        return name
    return shlex.quote(min(os.path.relpath(program), os.path.abspath(program), key=len))
