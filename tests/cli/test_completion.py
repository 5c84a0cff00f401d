"""Bash completes our words: its own completion function is asked, as the Tab key asks it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
PROGRAM = Path(sys.executable).parent / "cbml"

pytestmark = [
    pytest.mark.skipif(BASH is None, reason="bash is not installed"),
    pytest.mark.skipif(not PROGRAM.exists(), reason="the program cbml is not installed"),
]

# What bash does at Tab: set COMP_WORDS and COMP_CWORD, call the function that `complete` names.
ASK = r"""
source "$HOME/.bashrc"
read -ra COMP_WORDS <<< "$1"
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
spec=$(complete -p cbml)
[[ "$spec" =~ -F\ ([^ ]+) ]] && "${BASH_REMATCH[1]}" cbml
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An empty home in which completion was installed as a user would install it."""
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "HOME": str(tmp_path), "PATH": path}
    # The shell is found by looking at the program's parents; `exit` keeps bash from stepping aside.
    subprocess.run(
        [str(BASH), "-c", "cbml --install-completion; exit $?"],
        env=variables,
        check=True,
        capture_output=True,
    )
    return variables


def test_verbs_flags_and_commands_are_completed(home: dict[str, str]) -> None:
    def offered(line: str) -> list[str]:
        assert BASH is not None
        words = [BASH, "-c", ASK, "ask", line]
        done = subprocess.run(words, env=home, check=True, capture_output=True, text=True)
        return done.stdout.split()

    assert offered("cbml tr") == ["train"]
    assert {"demo", "doctor", "serve"} <= set(offered("cbml "))
    assert offered("cbml train --res") == ["--resume"]
    assert offered("cbml data ch") == ["check"]
    assert offered("cbml evaluate --split va") == ["validation"]
    assert offered("cbml nonsense --fl") == []
