"""docs/promises.md names tests that exist, and every line of it says what was counted."""

import re
from pathlib import Path

import cbml

ROOT = Path(cbml.__file__).parent.parent
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|\n ").split(" | ")]
    for line in PAGE.partition("## Attacks")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| promise ")
]


def test_every_promise_has_a_mechanism_tests_a_count_and_a_result() -> None:
    assert len(ROWS) >= 26
    assert [row[0] for row in ROWS if len(row) != 5 or not all(row)] == []
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_the_tests_of_the_promises_exist() -> None:
    assert [row[0] for row in ROWS if "::" not in row[2]] == []
    missing = []
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE):
        path = ROOT / "tests" / file
        if not (path.exists() and f"\ndef {name}(" in path.read_text(encoding="utf-8")):
            missing.append(f"{file}::{name}")
    assert missing == []
