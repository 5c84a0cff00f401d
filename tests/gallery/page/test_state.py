"""The address holds the state; what is shown can be taken away as a file."""

import contextlib
import csv
import io
import json
from typing import Any

import pytest

from tests.gallery.page.visits import Visit

STATES = [
    "?query=3&k=12&label=cherry&text=png&unique=1",
    "?text=sky",
    "?view=worst&label=leaf",
    "?view=compare&query=3&k=12",
    "?view=map&lasso=0_0.1000_0.1000_1000.0_1000",
    "?query=3&detail=4",
]
SHOWN = """() => [document.getElementById("main").innerText.replace(/in \\d+ ms/, ""),
  document.getElementById("detail").innerText]"""


@pytest.mark.parametrize("state", STATES)
def test_an_address_opens_the_same_page_again(visit: Visit, state: str) -> None:
    page = visit.open(state, wait=".tile")
    page.wait_for_load_state("networkidle")
    before = page.evaluate(SHOWN)
    page.reload()
    page.wait_for_selector(".tile")
    page.wait_for_load_state("networkidle")
    assert page.evaluate(SHOWN) == before
    assert page.url.endswith(state)


@pytest.mark.parametrize(
    "state", ["?query=-1&k=x&view=nothing", "?k=1e9&probability=7&lasso=%00.1"]
)
def test_an_address_that_makes_no_sense_shows_the_images(visit: Visit, state: str) -> None:
    visit.open(state, wait=".welcome")


def test_a_late_answer_does_not_replace_what_the_address_says(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/api/v1/images/3/search*", hold)
    page.locator(".tile a").nth(3).click()
    page.wait_for_selector(".busy")
    page.go_back()
    page.wait_for_selector("body:not(.busy) .welcome")
    for route in held:
        with contextlib.suppress(Exception):  # the page has given it up
            route.continue_()
    page.wait_for_load_state("networkidle")
    assert page.locator(".welcome").is_visible()
    page.unroute("**/api/v1/images/3/search*")
    page.locator(".tile a").nth(3).click()
    page.wait_for_selector(".query h2:text-is('cherry/3.png')")


def test_a_search_starts_at_the_top_and_back_returns_to_the_place(
    visit_of: Any, address: str
) -> None:
    with visit_of(address, viewport={"width": 390, "height": 500}) as visit:
        page = visit.open(wait=".tile")
        page.evaluate("scrollTo(0, 900)")
        page.locator(".tile a").nth(17).evaluate("(link) => link.click()")
        page.wait_for_selector(".query")
        page.wait_for_function("() => scrollY === 0")
        page.go_back()
        page.wait_for_function("() => scrollY === 900")


def exported(page: Any, kind: str) -> tuple[str, str]:
    page.locator("#export summary").click()
    with page.expect_download() as waiting:
        page.locator(f"[data-kind={kind}]").click()
    with open(waiting.value.path(), encoding="utf-8", newline="") as file:
        return waiting.value.suggested_filename, file.read()


def test_export_as_csv_and_json(visit: Visit) -> None:
    page = visit.open("?query=3&k=4", wait=".query")
    answer = visit.api("images/3/search?k=4")
    found = [*answer["results"], *answer["missed"]]
    name, text = exported(page, "csv")
    assert name == "Nearest-to-cherry-3-png.csv"
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(int(row["id"]), row["label"]) for row in rows] == [
        (r["id"], r["label"]) for r in found
    ]
    assert [float(row["similarity"]) for row in rows] == [r["similarity"] for r in found]
    _, text = exported(page, "json")
    data = json.loads(text)
    assert [row["id"] for row in data["images"]] == [result["id"] for result in found]
    assert data["address"].endswith("?query=3&k=4")


def test_export_as_one_page_that_needs_nothing_else(visit: Visit) -> None:
    page = visit.open("?query=3&k=4", wait=".query")
    _, text = exported(page, "html")
    shown = len(visit.api("images/3/search?k=4")["missed"]) + 4
    other = page.context.new_page()
    asked: list[str] = []
    other.on("request", lambda request: asked.append(request.url))
    other.set_content(text)
    loaded = "() => [...document.images].filter((image) => image.naturalWidth > 0).length"
    other.wait_for_function(f"({loaded})() === {shown + 1}")
    assert all(url.startswith("data:") for url in asked)
    assert other.locator("li").count() == shown
