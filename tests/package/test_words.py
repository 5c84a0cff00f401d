"""Names and documents use the words of the field, spelled as torch spells them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cbml

PACKAGE = Path(cbml.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))
# Decisions and the log tell of earlier names.
DOCUMENTS = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")} - {ROOT / "docs" / "log.md"})

# What the first edition called images, baselines, metadata, cohorts, datasets and the like.
FORMER = {
    *("picture", "pictures", "rival", "rivals", "facts", "crowd", "surroundings", "shelf", "wish"),
    *("scene", "team", "listener", "course", "likeness", "honest", "looked"),
}
BRITISH = re.compile(
    r"optimis(?!tic)|normalis|colour|neighbour|behaviour|labell|initialis|summaris|\bcentre|\bgrey\b"
)


def identifiers(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        for field in ("id", "arg", "attr", "name"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


def former_words(source: str) -> set[str]:
    return {name for name in identifiers(source) if FORMER & set(name.lower().split("_"))}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_are_words_of_the_field(path: Path) -> None:
    source = path.read_text()
    assert not former_words(source)
    if path.name != "old_records.py":  # reads records with the former spelling
        assert not BRITISH.search(source)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_spelled_alike(path: Path) -> None:
    assert not BRITISH.search(path.read_text())


def test_the_checks_see_what_they_forbid() -> None:
    assert former_words("def read(picture_paths): ...") == {"picture_paths"}
    assert not former_words("def read(image_paths): ...")
    assert BRITISH.search("the optimiser")
    assert not BRITISH.search("an optimistic choice")
