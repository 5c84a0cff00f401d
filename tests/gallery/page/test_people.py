"""Keyboard, screen readers, contrast, lazy thumbnails, and pages that have nothing to show."""

from pathlib import Path
from typing import Any

import pytest

import cbml
from cbml.gallery import ImageRef
from tests.gallery.page.visits import Visit, make_gallery, serving

PAGE = Path(cbml.__file__).parent / "gallery" / "page"
VIEWS = ["", "?query=3", "?view=worst", "?view=compare&query=3", "?view=map", "?query=3&detail=4"]

# Text and what lies behind it, as the browser computed them; images behind text have a plate.
CONTRASTS = """() => {
  const parse = (color) => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (top, under) =>
    top.slice(0, 3).map((value, i) => value * top[3] + under[i] * (1 - top[3]));
  const style = (node) => getComputedStyle(node);
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(parse(style(at).backgroundColor));
    return layers.reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (color) => {
    const [r, g, b] = color.map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const words = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!words || !node.checkVisibility()) continue;
    if (node.closest(".unseen, .skip, :disabled")) continue;
    const under = behind(node);
    const [dark, bright] = [light(over(parse(style(node).color), under)), light(under)].sort(
      (a, b) => a - b);
    found.push([(bright + 0.05) / (dark + 0.05), `${node.className} ${node.textContent}`]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(visit_of: Any, address: str, scheme: str) -> None:
    backgrounds = set()
    with visit_of(address, color_scheme=scheme) as visit:
        for view in VIEWS:
            page = visit.open(view, wait=".tile, .plot")
            page.wait_for_load_state("networkidle")
            found = page.evaluate(CONTRASTS)
            assert len(found) > 10
            assert not [row for row in found if row[0] < 4.5], view
            backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backgrounds == {"rgb(249, 249, 247)" if scheme == "light" else "rgb(17, 17, 16)"}


UNNAMED = """() => {
  const kinds = "a[href], button, input, select, summary, canvas[tabindex], dialog, nav, main img";
  const named = (node) => node.getAttribute("aria-label") || node.getAttribute("aria-labeledby")
    || node.labels?.length || node.textContent.trim() || node.hasAttribute("alt");
  return [...document.querySelectorAll(kinds)]
    .filter((node) => node.checkVisibility() && !named(node)).map((node) => node.className);
}"""
ROLES = {
    "application",
    "button",
    "checkbox",
    "combobox",
    "dialog",
    "link",
    "searchbox",
    "slider",
    "textbox",
}
FOCUSED = """() => document.activeElement.getAttribute("aria-label")
  ?? document.activeElement.textContent"""


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_has_a_name(visit: Visit, view: str) -> None:
    page = visit.open(view, wait=".tile, .plot")
    assert page.evaluate(UNNAMED) == []
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    named = [
        node for node in nodes if node.get("role", {}).get("value") in ROLES and not node["ignored"]
    ]
    assert len(named) > 5
    assert [node for node in named if not node.get("name", {}).get("value")] == []


def test_a_search_by_keyboard_alone(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == "Skip to the images"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED).startswith("Search with cherry/0.png"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus must be seen"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(FOCUSED).startswith("Search with cherry/2.png")
    page.keyboard.press("d")
    page.wait_for_selector("#detail-title:text-is('cherry/2.png')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail:not([open])", state="attached")
    assert page.evaluate(FOCUSED).startswith("Search with cherry/2.png"), "focus comes back"
    page.keyboard.press("Enter")
    page.wait_for_selector(".query h2:text-is('cherry/2.png')")
    page.keyboard.press("/")
    page.keyboard.type("sky")
    page.wait_for_url("**text=sky**")
    page.keyboard.press("Escape")
    page.locator("#main").focus()
    for key, place in [("w", ".worst .row"), ("m", ".plot"), ("c", ".pair"), ("p", ".query")]:
        page.keyboard.press(key)
        page.wait_for_selector(place)
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Search by looking").wait_for()
    page.get_by_label("Single-letter keys").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("w")
    assert "view=worst" not in page.url


def test_the_map_by_keyboard(visit: Visit) -> None:
    page = visit.open("?view=map", wait=".plot")
    page.locator(".plot canvas").last.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#status").inner_text()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "(text) => document.getElementById('status').innerText !== text", arg=first
    )
    page.keyboard.press("s")
    page.wait_for_selector("h2:text-is('33 images selected')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".query")


def test_thumbnails_are_loaded_when_they_come_near(visit_of: Any, address: str) -> None:
    with visit_of(address, viewport={"width": 390, "height": 500}) as visit:
        asked: list[str] = []
        visit.page.on(
            "request", lambda request: "thumbnail" in request.url and asked.append(request.url)
        )
        page = visit.open("?view=worst", wait=".row")
        page.wait_for_load_state("networkidle")
        assert page.locator(".row").count() == 20
        assert page.locator(".strip").count() < 20
        early = len(set(asked))
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_function(
            "() => document.querySelectorAll('.row:last-child .strip').length === 1"
        )
        page.wait_for_load_state("networkidle")
        assert len(set(asked)) > early
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            "no sideways scrolling"
        )


@pytest.mark.parametrize("view", VIEWS)
def test_a_telephone_needs_no_sideways_scrolling(visit_of: Any, address: str, view: str) -> None:
    with visit_of(address, viewport={"width": 390, "height": 844}) as visit:
        page = visit.open(view, wait=".tile, .plot")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        tabs = [tab.bounding_box() for tab in page.locator("nav a").all()]
        assert all(box["x"] + box["width"] <= 390 for box in tabs), "every view can be seen"


def test_of_a_nested_label_the_last_part_is_read(
    visit_of: Any, images: list[ImageRef], tmp_path: Path
) -> None:
    label = "Vegetables/Tomato/Red-Beet"
    nested = [ImageRef(image.path, image.name, label) for image in images[:2]]
    gallery = make_gallery(tmp_path / "nested", nested)
    with serving(gallery) as url, visit_of(url, viewport={"width": 390, "height": 844}) as visit:
        page = visit.open(wait=".tile")
        shown = page.locator(".tile .name").first
        assert shown.inner_text().replace("\n", "") == label
        box, folders, last = (part.bounding_box() for part in (shown, *shown.locator("bdi").all()))
        assert folders["y"] + folders["height"] <= box["y"] + 1, "its folders are out of sight"
        assert (last["x"], last["y"] - box["y"]) == (box["x"], pytest.approx(0, abs=1))
        assert last["width"] < box["width"], "nothing of the last part is cut"


def test_one_image_without_a_label(visit_of: Any, images: list[ImageRef], tmp_path: Path) -> None:
    alone = make_gallery(tmp_path / "alone", [ImageRef(images[0].path, "alone.png", None)])
    with serving(alone) as url, visit_of(url) as visit:
        page = visit.open(wait=".tile")
        page.locator(".tile a").click()
        page.wait_for_selector("text=No image matches")
        for view, words in [("worst", "No labels, no verdict"), ("compare", "One model is served")]:
            visit.open(f"?view={view}", wait=f"text={words}")
        visit.open("?view=map", wait=".plot, .notice")


def test_a_image_that_is_not_there_and_a_file_that_is_none(visit: Visit, tmp_path: Path) -> None:
    visit.forgiven = ("Failed to load resource",)  # the browser's own line for a 4xx
    page = visit.open("?query=999", wait=".notice")
    assert "999" in page.locator(".notice").inner_text()
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image at all")
    page.locator("#file").set_input_files(str(broken))
    page.wait_for_url("**upload=**")
    page.wait_for_selector(".notice h2:text-is('That did not work')")
    (tmp_path / "words.txt").write_text("words")
    page.locator("#file").set_input_files(str(tmp_path / "words.txt"))
    page.wait_for_selector("#toast:has-text('words.txt is not an image')")


def test_a_image_that_is_too_large_is_not_sent(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    most = visit.api("info")["limits"]["body_bytes"]
    page.evaluate(
        """(bytes) => {
          const held = new DataTransfer();
          held.items.add(new File([new Uint8Array(bytes)], "huge.png", { type: "image/png" }));
          dispatchEvent(new DragEvent("drop", { dataTransfer: held, cancelable: true }));
        }""",
        most + 1,
    )
    page.wait_for_selector("#toast:has-text('the service takes at most')")
    assert "upload" not in page.url


def test_a_service_that_went_away_can_be_tried_again(visit: Visit) -> None:
    visit.forgiven = ("Failed to load resource",)
    page = visit.open(wait=".tile")
    page.context.set_offline(True)
    page.locator(".tile a").nth(2).click()
    page.wait_for_selector("text=The service does not answer")
    page.context.set_offline(False)
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".query h2:text-is('cherry/2.png')")


def test_the_page_is_small_and_calls_nobody() -> None:
    files = [path for path in PAGE.iterdir() if path.suffix in {".html", ".js", ".css"}]
    assert sum(path.stat().st_size for path in files) < 150_000
    for path in files:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ):
            assert forbidden not in text, path
