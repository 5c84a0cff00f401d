"""The documentation builds without a warning, and leaves no package out."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cbml

ROOT = Path(cbml.__file__).parent.parent


def test_every_package_is_in_the_reference() -> None:
    packages = {path.parent.name for path in (ROOT / "cbml").glob("*/__init__.py")} - {"cli"}
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")}
    assert set(pages) == packages
    listed = (ROOT / "docs" / "api.md").read_text()
    for name in packages:
        assert f"automodule:: cbml.{name}\n" in pages[name]
        assert f"(api/{name}.md)" in listed


def first_heading(page: Path) -> str:
    """As it is read: without the marks of code and of links; records.md includes another page."""
    if page.name == "records.md":
        page = ROOT / "results" / "README.md"
    text = page.read_text()
    if page.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    line = next(line for line in text.splitlines() if line.startswith("# "))
    return line[2:].replace("`", "").strip()


def headings(built: str) -> list[str]:
    """The text of a page's headings of the first level, with the apostrophes of the source."""
    found = re.findall(r"<h1>(.*?)<a class=\"headerlink\"", built, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", one)).replace("’", "'") for one in found]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="needs the extra docs")
    words = ["--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, "-d", str(tmp_path / "state"), "docs", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page in (ROOT / "docs").rglob("*"):
        if page.suffix in {".md", ".ipynb"}:
            built = tmp_path / page.relative_to(ROOT / "docs").with_suffix(".html")
            assert first_heading(page) in headings(built.read_text()), page
    reference = (tmp_path / "api" / "losses.html").read_text()
    assert 'id="cbml.losses.CBMLLoss"' in reference
    assert "target_mix" in reference
    assert (tmp_path / "decisions" / "0002-gradient-by-hand.html").exists()
    remote = [line for line in reference.splitlines() if 'src="http' in line]
    assert remote == [], "the site shows nothing from elsewhere"
