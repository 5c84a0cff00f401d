"""Several query images at once, parts of them, confusions, and where two models differ."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cbml.gallery import Gallery, ImageRef, SearchOptions
from tests.gallery.page.visits import PROGRAM, Visit, draw_image, fixed, make_gallery, serving


def tile_ids(holder: Any) -> list[int]:
    buttons = holder.locator("[data-detail]")
    return [int(button.get_attribute("data-detail")) for button in buttons.all()]


def test_several_images_at_once(visit: Visit, images: list[ImageRef], main_gallery: Path) -> None:
    page = visit.open("?k=12", wait=".tile")
    files = [images[number].path for number in (2, 12, 20)]
    page.locator("#file").set_input_files(files)
    page.wait_for_selector("h2:text-is('3 query images')")
    with Gallery(main_gallery) as opened:
        for path in map(Path, files):
            found = opened.search(opened.query(path), SearchOptions(k=12))
            row = page.get_by_role("list", name=f"Nearest to {path.name}")
            assert tile_ids(row) == [result.id for result in found.results]
    command = page.locator(".command code").inner_text()
    names = " ".join(Path(path).name for path in files)
    assert command == f"{PROGRAM} search {main_gallery} {names} --k 12"
    page.reload()  # they are kept in the browser
    page.wait_for_selector(".queries .row:nth-child(3) .tile")
    page.get_by_role("link", name="This search alone").nth(1).click()
    page.wait_for_selector(f".query h2:text-is('{Path(files[1]).name}')")


def test_of_several_files_those_that_are_no_images_are_left_out(
    visit: Visit, images: list[ImageRef], tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("nothing to see")
    page = visit.open(wait=".tile")
    page.locator("#file").set_input_files([str(note), images[2].path])
    page.wait_for_selector(f".query h2:text-is('{Path(images[2].path).name}')")
    assert page.locator("#toast").inner_text() == "note.txt is not an image."


def test_a_part_of_an_image_can_be_searched_with(
    visit: Visit, images: list[ImageRef], main_gallery: Path
) -> None:
    page = visit.open(wait=".tile")
    page.locator("#file").set_input_files(images[9].path)
    page.wait_for_selector(".query h2")
    page.get_by_role("button", name="Crop").click()
    box = page.locator(".stage").bounding_box()
    at = lambda x, y: (box["x"] + x * box["width"], box["y"] + y * box["height"])  # noqa: E731
    page.mouse.move(*at(0.25, 0.5))
    page.mouse.down()
    page.mouse.move(*at(0.6, 0.7), steps=3)
    page.mouse.move(*at(0.75, 1.0), steps=3)
    page.mouse.up()
    page.get_by_role("button", name="Search with this part").click()
    name = f"{Path(images[9].path).stem}-crop.png"
    page.wait_for_selector(f".query h2:text-is('{name}')")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save image").click()
    part = Image.open(waiting.value.path()).convert("RGB")
    whole = Image.open(images[9].path).convert("RGB")  # 96 × 72
    assert abs(part.width - 48) <= 1
    assert abs(part.height - 36) <= 1
    expected = np.asarray(whole)[36:72, 24:72].astype(int)
    difference = np.abs(np.asarray(part.resize((48, 36))).astype(int) - expected)
    assert difference.mean() < 8  # a pixel more or less at the edge
    content = io.BytesIO()
    part.save(content, format="PNG")
    with Gallery(main_gallery) as opened:
        found = opened.search(opened.query(content.getvalue()), SearchOptions(k=24))
    shown = tile_ids(page.get_by_role("list", name="Nearest images"))
    assert shown == [result.id for result in found.results]


def test_the_part_can_be_chosen_with_keys(visit: Visit) -> None:
    page = visit.open("?query=9", wait=".query")
    page.get_by_role("button", name="Crop").click()
    part = page.locator(".stage .part")
    place = (
        "(part) => ['left', 'top', 'width', 'height'].map((side) => parseFloat(part.style[side]))"
    )
    assert [round(value) for value in part.evaluate(place)] == [20, 20, 60, 60]
    for key in ["ArrowRight", "ArrowRight", "ArrowDown", "Shift+ArrowLeft", *["ArrowUp"] * 20]:
        page.keyboard.press(key)
    assert [round(value) for value in part.evaluate(place)] == [24, 0, 58, 60]
    page.keyboard.press("Enter")
    page.wait_for_selector(".query h2:text-is('1-crop.png')")
    page.go_back()
    page.wait_for_selector(".query h2:text-is('leaf/1.png')")


def test_confusions_with_examples(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    page.get_by_role("link", name="Confusions").click()
    page.wait_for_selector(".confusions .row")
    found = visit.api("confusions?limit=20")
    rows = page.locator(".confusions > .row").all()
    assert len(rows) == len(found["confusions"]) > 1
    for row, pair in zip(rows, found["confusions"], strict=True):
        heading = row.locator("h3").inner_text()
        assert heading == f"{pair['label']} taken for {pair['taken_for']}"
        times = "once" if pair["count"] == 1 else f"{pair['count']} times"
        assert row.locator("p").inner_text() == times
        expected = [one[side]["id"] for one in pair["examples"] for side in ("query", "nearest")]
        assert tile_ids(row) == expected
    first = found["confusions"][0]["label"]
    rows[0].get_by_role("link", name=first, exact=True).first.click()
    page.wait_for_url(f"**/?view=confusions&label={first}")


def test_nothing_wrong_is_said_in_words(visit_of: Any, tmp_path: Path) -> None:
    """Two colors that no network takes for each other, and a label of one image."""
    listed = []
    for number in range(6):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (40, 40), [(250, 5, 5), (5, 5, 250)][number % 2]).save(path)
        listed.append(ImageRef(str(path), path.name, ["red", "blue"][number % 2]))
    draw_image(tmp_path / "lone.png", (9, 200, 9), seed=1)
    listed.append(ImageRef(str(tmp_path / "lone.png"), "lone.png", "green"))
    gallery = make_gallery(tmp_path / "colors", listed)
    with serving(gallery) as url, visit_of(url) as visit:
        page = visit.open("?view=worst", wait=".worst")
        assert page.get_by_role("heading", name="No query fails").is_visible()
        visit.open("?view=worst&label=green", wait=".notice")
        assert page.get_by_text("Only one image has this label").is_visible()
        visit.open("?view=confusions&label=red", wait="#main > *")
        assert page.get_by_role("heading", name="“red” is not confused").is_visible()


def test_compare_lists_where_two_models_differ_most(visit: Visit) -> None:
    page = visit.open("?view=compare", wait=".differences")
    found = visit.api("differences?limit=48")["images"]
    assert found, "the test needs models that differ"
    holder = page.get_by_role("list", name="Largest differences")
    assert tile_ids(holder) == [query["id"] for query in found]
    gains = []
    for tile, query in zip(holder.locator(".tile").all(), found, strict=True):
        before, after = query["average_precision"], query["other_average_precision"]
        gains.append(abs(after - before))
        sign = "▲" if after > before else "▼"
        assert tile.locator(".moved").inner_text() == f"{sign} {fixed(gains[-1])} with second"
        assert f"{fixed(before)} → {fixed(after)}" in tile.inner_text()
    assert gains == sorted(gains, reverse=True)
    holder.locator(".tile a").first.click()
    page.wait_for_url(f"**/?view=compare&query={found[0]['id']}")
    page.wait_for_selector(".pair .tile")
