"""Names and labels that hold scripts are shown as text, and nothing of them is executed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cbml.gallery import ImageRef
from tests.gallery.page.visits import draw_image, make_gallery, serving

MARK = "window.struck=1"
TAGS = "#main :is(script, iframe, svg, math, object, video, details, style, base)"
STRINGS = [
    f"<script>{MARK}</script>",
    f"<ScRiPt>{MARK}</sCrIpT>",
    f"<img src=x onerror={MARK}>",
    f"<img src='x' onerror='{MARK}'>",
    f"<svg onload={MARK}>",
    f"<svg><script>{MARK}</script></svg>",
    f"<body onload={MARK}>",
    f"<iframe srcdoc='<script>parent.{MARK}</script>'></iframe>",
    f"<iframe src=javascript:parent.{MARK}>",
    f"<a href=javascript:{MARK}>click</a>",
    f"javascript:{MARK}",
    f'"><script>{MARK}</script>',
    f"'><script>{MARK}</script>",
    f"</title><script>{MARK}</script>",
    f"</style><script>{MARK}</script>",
    f"</textarea><script>{MARK}</script>",
    f"--><script>{MARK}</script>",
    f"]]><script>{MARK}</script>",
    f'" onmouseover="{MARK}',
    f"' onfocus='{MARK}' autofocus='",
    f"<input autofocus onfocus={MARK}>",
    f"<details open ontoggle={MARK}>",
    f"<video><source onerror={MARK}></video>",
    f"<math><mtext><img src=x onerror={MARK}></mtext></math>",
    f"<object data='data:text/html,<script>{MARK}</script>'></object>",
    f"<style>@import 'javascript:{MARK}';</style>",
    f"<meta http-equiv=refresh content='0;url=javascript:{MARK}'>",
    "<base href='//example.invalid/'>",
    f"${{{MARK}}}{{{{{MARK}}}}}",
    f"\u202e<script>{MARK}</script>\u0000\n<b>bold</b>",
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Each string as a name and as a label, on two images so that searches have positives."""
    images, listed = tmp_path_factory.mktemp("images"), []
    for number, text in enumerate(STRINGS * 2):
        path = images / f"{number}.png"
        draw_image(path, (200, 8 * (number % 30), 90), seed=number)
        listed.append(ImageRef(str(path), f"{text} {number}", text))
    folder = tmp_path_factory.mktemp("galleries") / "hostile"
    with serving(make_gallery(folder, listed)) as url:
        yield url


def struck(page: Any) -> bool:
    return bool(page.evaluate("'struck' in window"))


def test_thirty_scripts_are_text(visit_of: Any, hostile: str) -> None:
    assert len(STRINGS) == len(set(STRINGS)) == 30
    with visit_of(hostile) as visit:
        page = visit.open(wait=".tile:nth-child(60)")
        labels = page.locator(".tile .name").all_text_contents()
        listed = visit.api("images?limit=500")["images"]
        assert labels == [image["label"] for image in listed]
        assert page.locator(TAGS).count() == 0
        for view in ("?query=0&k=96", "?view=worst", "?view=map&lasso=0_0.1000_0.1000_1000.0_1000"):
            page = visit.open(view, wait=".tile")
            page.wait_for_load_state("networkidle")
            assert page.locator(TAGS).count() == 0
            assert not struck(page)


def test_scripts_in_details_filters_and_titles_are_text(visit_of: Any, hostile: str) -> None:
    with visit_of(hostile) as visit:
        for image in visit.api("images?limit=500")["images"][:30]:
            page = visit.open(
                f"?query={image['id']}&detail={image['id']}", wait="#detail[open] .facts"
            )
            assert page.locator("#detail-title").text_content() == image["name"]
            shown = image["name"].replace("\0", "")  # a browser shows no NUL in a title
            assert " ".join(shown.split()) in " ".join(page.title().split())
            assert not struck(page)
        page.locator("#detail-close").click()
        page.locator("#label").focus()
        page.wait_for_function("() => document.querySelectorAll('#labels option').length === 30")
        assert not struck(page)


def test_scripts_in_an_exported_page_are_text(visit_of: Any, hostile: str) -> None:
    with visit_of(hostile) as visit:
        page = visit.open(wait=".tile:nth-child(60)")
        page.locator("#export summary").click()
        with page.expect_download() as waiting:
            page.locator("[data-kind=html]").click()
        other = page.context.new_page()
        other.set_content(Path(waiting.value.path()).read_text(encoding="utf-8"))
        assert other.locator("li").count() == 60
        assert other.locator("script, iframe, svg, object, b, base").count() == 0
        assert not struck(other)
