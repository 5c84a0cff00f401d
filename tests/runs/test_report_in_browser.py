"""Links, copy buttons and explanations of the report, in a real browser."""

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cbml.report import QueryTiles, Table, Tile, histogram_chart, write_page, write_run_page
from tests.gallery.page.visits import FLAGS, Visit, browser_path, visiting

playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
COMMAND = "cbml index 'runs/my run' IMAGES --out gallery"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = browser_path()
    if path is None:
        pytest.skip("needs a browser: install chromium")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=path, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Visit]:
    """A tab on a folder, served as files."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        with visiting(browser, url) as tab:
            tab.forgiven = ("404",)  # the icon of the site
            yield tab
        server.shutdown()


def test_the_report_of_a_run(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    record: dict[str, Any] = {"best_step": 3, "test": {"recall@1": 0.5, "map@r": 0.25}}
    write_run_page(tmp_path / "report.html", record, [], next_commands=[COMMAND])
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visit.open("report.html", wait="h1")
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == COMMAND
    links = page.locator(".links a").evaluate_all("(all) => all.map((link) => link.href)")
    assert links == [f"{visit.url}run.json"]
    assert visit.page.request.get(links[0]).ok
    terms = {term.inner_text(): term.get_attribute("title") for term in page.locator("abbr").all()}
    assert {"Recall@1", "MAP@R", "test, after"} <= set(terms)
    assert all(str(text).endswith(".") for text in terms.values())


def test_in_a_narrow_window_words_stay_whole_and_tiles_apart(visit: Visit, tmp_path: Path) -> None:
    scores = {"recall@1": 0.5, "recall@100": 0.75, "map@r": 0.25, "r_precision": 0.5}
    record: dict[str, Any] = {"best_step": 3, "test": scores, "test_start": scores}
    tiles = [Tile(PIXEL, "oak", "0.90", "relevant") for _ in range(8)]
    query = QueryTiles(Tile(PIXEL, "oak", "query", "query"), tiles)
    gained = ("Queries that gained most", [(query, query)])
    write_run_page(tmp_path / "report.html", record, [], gained=gained)
    visit.page.set_viewport_size({"width": 400, "height": 800})
    page = visit.open("report.html", wait="h1")
    names = page.locator("tbody th:first-child abbr")
    right = page.locator(".pair > div:nth-child(2)").bounding_box()
    tile = page.locator(".pair .tile").first.bounding_box()
    assert tile["x"] + tile["width"] <= right["x"], "the query is not covered"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size({"width": 220, "height": 800})  # the table scrolls instead
    assert {name.evaluate("(term) => term.getClientRects().length") for name in names.all()} == {1}


def test_a_copy_that_is_not_allowed_selects_the_command(visit: Visit, tmp_path: Path) -> None:
    write_run_page(tmp_path / "report.html", {}, [], next_commands=[COMMAND])
    page = visit.open("report.html", wait="h1")
    page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }"
    )
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Press Ctrl+C").wait_for()
    assert page.evaluate("() => getSelection().toString()") == COMMAND


def test_the_demo_shows_what_gained_most_first_and_links_on(visit: Visit, tmp_path: Path) -> None:
    one = QueryTiles(Tile("data:,", "swan", "query", "query"), [])
    write_page(
        tmp_path / "report.html",
        "demo.html",
        title="What was learned",
        sentence="It helped.",
        scores=Table(("", "before", "after", "points"), [("MAP@R", "1", "2", "+1.0")]),
        queries=[(title, [(one, one)]) for title in ("Gained most", "Lost most")],
        separation="Further apart.",
        histograms=[histogram_chart("after", [0, 0.5, 1], [0.1, 0.9], [0.8, 0.2], (0.8, 0.2))],
        calibration=None,
        next_commands=[COMMAND],
    )
    page = visit.open("report.html", wait="h1")
    assert page.locator("h3").all_inner_texts() == ["Gained most", "Lost most"]
    links = page.locator(".links a").evaluate_all("(all) => all.map((link) => link.href)")
    assert links == [f"{visit.url}run/{name}" for name in ("report.html", "run.json")]


def test_the_analysis_begins_with_a_sentence_and_the_figures(visit: Visit, tmp_path: Path) -> None:
    chart = histogram_chart("pairs", [0, 0.5, 1], [0.1, 0.9], [0.8, 0.2], (0.8, 0.2))
    write_page(
        tmp_path / "analysis.html",
        "analysis.html",
        title="a run",
        sentence="Pairs are apart by 2.1.",
        figures=[("Similarities of pairs", "How similar.", [chart])],
        tables=[Table(("images", "μ_P"), [("test", "0.8")], "A note.", "Pairs")],
    )
    page = visit.open("analysis.html", wait="h1")
    order = page.evaluate(
        "() => [...document.querySelectorAll('.lead, svg, table')].map((node) => node.tagName)"
    )
    assert [name.lower() for name in order] == ["p", "svg", "table"]
    assert page.locator("abbr", has_text="μ_P").get_attribute("title")
