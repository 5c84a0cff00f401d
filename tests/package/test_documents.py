"""Every Python block of the documents runs; every local link leads somewhere."""

import json
import re
from pathlib import Path

import pytest

import cbml
from tests.program import run

ROOT = Path(cbml.__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NOTEBOOKS = sorted(ROOT.glob("docs/**/*.ipynb"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def identify(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=identify)
def test_python_blocks_run(path: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(path.read_text())
    if blocks:  # one after another, as a reader would type them
        done = run(code="\n".join(blocks), cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=identify)
def test_notebooks_run_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "stored outputs"
    program = "\n\n".join("".join(cell["source"]) for cell in cells)
    done = run(code=program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [*DOCUMENTS, *NOTEBOOKS], ids=identify)
def test_local_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (path.parent / target).exists(), f"{identify(path)} links to missing {target}"


@pytest.mark.parametrize("name", ["docs/tour.md", "CONTRIBUTING.md"])
def test_files_that_developers_are_sent_to_exist(name: str) -> None:
    named = re.findall(r"`(\w+/[\w/]*(?:\.py)?)`", (ROOT / name).read_text())
    assert named
    for path in named:
        places = (ROOT / path, ROOT / "cbml" / path)
        assert any(place.exists() for place in places), f"{name} names missing {path}"


def test_there_are_documents_to_check() -> None:
    names = {identify(path) for path in DOCUMENTS}
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/tour.md"} <= names
    assert {path.stem for path in NOTEBOOKS} == {"own-loop", "folder"}
