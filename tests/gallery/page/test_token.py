"""The page asks for the token of a service once, and keeps it in this tab and nowhere else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gallery.page.visits import serving

TOKEN = "a token/with & signs?"
KEPT = """async () => ({
  session: Object.values({ ...sessionStorage }),
  local: Object.values({ ...localStorage }),
  cookies: document.cookie,
  address: location.href,
  databases: (await indexedDB.databases()).map(({ name }) => name),
})"""


@pytest.fixture(scope="module")
def guarded(main_gallery: Path) -> Iterator[str]:
    with serving(main_gallery, token=TOKEN) as url:
        yield url


def enter(page: Any, token: str) -> None:
    page.locator("#token").fill(token)
    page.get_by_role("button", name="Open").click()


def test_the_token_is_asked_for_once_and_kept_in_this_tab_alone(
    visit_of: Any, guarded: str
) -> None:
    with visit_of(guarded) as visit:
        visit.forgiven = ("Failed to load resource",)  # the browser's own line for 401
        page = visit.open(wait="#token")
        assert page.locator(".tile").count() == 0
        enter(page, "wrong")
        page.wait_for_selector("#token:not([value])")
        enter(page, TOKEN)
        page.wait_for_selector(".tile")
        image = page.wait_for_selector(".tile img[src^='blob:']", state="attached")
        assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        page.reload()
        page.wait_for_selector(".tile")
        kept = page.evaluate(KEPT)
        assert kept["session"] == [TOKEN]
        assert TOKEN not in str([kept[name] for name in ("local", "cookies", "address")])
        assert "token" not in page.url
        other = page.context.new_page()
        other.goto(guarded)
        other.wait_for_selector("#token")


@pytest.mark.parametrize("broken", ["%", "%zz", "%e4", "wrong", ""])
def test_a_link_with_a_broken_token_is_answered_by_the_question(
    visit_of: Any, guarded: str, broken: str
) -> None:
    with visit_of(guarded) as visit:
        visit.forgiven = ("Failed to load resource",)
        page = visit.open(f"#token={broken}", wait="#token")
        assert "#" not in page.url
        enter(page, TOKEN)
        page.wait_for_selector(".tile")


def test_a_link_brings_the_token_also_where_nothing_can_be_kept(
    visit_of: Any, guarded: str
) -> None:
    blocked = (
        "Object.defineProperty(window, 'sessionStorage', { get() { throw new Error('no'); } })"
    )
    with visit_of(guarded) as visit:
        visit.page.add_init_script(blocked)
        page = visit.open("#token=a%20token%2Fwith%20%26%20signs%3F", wait=".tile")
        assert "token" not in page.url
