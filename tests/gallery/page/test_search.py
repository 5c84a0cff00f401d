"""Search with an image, and what its results say."""

import base64
from pathlib import Path
from typing import Any

import pytest

from cbml.gallery import ImageRef
from tests.gallery.page.visits import Visit, fixed

HAND_OVER = """async ([name, type, text]) => {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const held = new DataTransfer();
  held.items.add(new File([bytes], name, { type: "image/png" }));
  const give = (Kind, name, field) => document.body.dispatchEvent(
    new Kind(name, { bubbles: true, cancelable: true, [field]: held }));
  if (type === "paste") give(ClipboardEvent, "paste", "clipboardData");
  else for (const step of ["dragover", "drop"]) give(DragEvent, step, "dataTransfer");
}"""


FRAME = """(frame) => {
  const { borderTopColor, borderTopWidth } = getComputedStyle(frame);
  return borderTopColor + borderTopWidth;
}"""


def hand_over(page: Any, way: str, path: str) -> None:
    if way == "pick":
        with page.expect_file_chooser() as chosen:
            page.get_by_role("button", name="Search by image").click()
        chosen.value.set_files(path)
    else:
        text = base64.b64encode(Path(path).read_bytes()).decode()
        page.evaluate(HAND_OVER, ["disc.png", way, text])


def captions(page: Any, name: str) -> list[list[str]]:
    """Rank, sign, label and numbers of each tile of a list."""
    tiles = page.get_by_role("list", name=name, exact=True).locator(".tile").all()
    return [tile.inner_text().replace("⋯", "").split("\n") for tile in tiles]


@pytest.mark.parametrize("way", ["pick", "drop", "paste"])
def test_a_image_can_be_picked_dropped_and_pasted(
    visit: Visit, images: list[ImageRef], way: str
) -> None:
    page = visit.open(wait=".tile")
    hand_over(page, way, images[9].path)
    page.wait_for_selector(".query")
    nearest = page.get_by_role("list", name="Nearest images").locator(".tile").first
    assert "leaf/1.png" in nearest.get_by_role("link").get_attribute("aria-label")
    assert "1.000" in nearest.inner_text()
    assert page.locator(".query img").evaluate("(image) => image.naturalWidth") == 96
    page.reload()  # the image stays in this browser
    page.wait_for_selector(".query")
    assert page.locator(".verdict").count() == 0, "an unlabeled query cannot be right or wrong"


def test_a_result_searches_and_back_returns(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    page.locator(".tile a").nth(3).click()
    page.wait_for_selector(".query h2:text-is('cherry/3.png')")
    second = visit.api("images/3/search?k=24")["results"][4]
    page.get_by_role("list", name="Nearest images").locator(".tile a").nth(4).click()
    page.wait_for_selector(f".query h2:text-is('{second['name']}')")
    assert page.url.endswith(f"?query={second['id']}")
    page.go_back()
    page.wait_for_selector(".query h2:text-is('cherry/3.png')")
    page.go_back()
    page.wait_for_selector(".welcome")
    page.go_forward()
    page.wait_for_selector(".query h2:text-is('cherry/3.png')")


def test_tiles_say_rank_similarity_probability_and_label(visit: Visit) -> None:
    page = visit.open("?query=0&k=12", wait=".query")
    found = visit.api("images/0/search?k=12")["results"]
    shown = captions(page, "Nearest images")
    assert len(shown) == len(found) == 12
    for words, result in zip(shown, found, strict=True):
        numbers = [percent(result["probability"]), fixed(result["similarity"])]
        signs = ["✓" if result["relevant"] else "✗", *(["≈ duplicate"] * result["duplicate"])]
        expected = [str(result["rank"]), *signs, result["label"], " · ".join(numbers)]
        assert [word for word in words if word] == expected


def percent(probability: float) -> str:
    if 0.995 < probability < 1:
        return "> 99 %"
    if 0 < probability < 0.005:
        return "< 1 %"
    return f"{int(probability * 100 + 0.5)} %"


def test_frames_and_signs_tell_right_from_wrong(visit: Visit) -> None:
    page = visit.open("?query=0&k=12", wait=".query")
    found = visit.api("images/0/search?k=12")["results"]
    kinds = {result["relevant"] for result in found}
    assert kinds == {True, False}, "the test needs both"
    colors = {}
    tiles = page.get_by_role("list", name="Nearest images").locator(".tile").all()
    for tile, result in zip(tiles, found, strict=True):
        assert tile.locator(".verdict").inner_text() == ("✓" if result["relevant"] else "✗")
        colors.setdefault(result["relevant"], set()).add(tile.locator(".frame").evaluate(FRAME))
    assert colors == {True: {"rgb(11, 122, 15)3px"}, False: {"rgb(196, 47, 47)3px"}}


def test_missed_positives_stand_in_a_row_of_their_own(visit: Visit) -> None:
    page = visit.open("?query=0&k=4", wait=".query")
    answer = visit.api("images/0/search?k=4")
    assert answer["missed"], "the test needs some"
    shown = captions(page, "Missed positives")
    assert [words[0] for words in shown] == [str(result["rank"]) for result in answer["missed"]]
    assert all(words[1] == "✓" for words in shown)
    assert len(answer["missed"]) + sum(row["relevant"] for row in answer["results"]) == 8


def test_first_hit_and_average_precision_and_totals(visit: Visit) -> None:
    page = visit.open("?query=20", wait=".query")
    query = visit.api("images/20/search")["query"]
    facts = page.locator(".query .facts").inner_text().replace("\n", " ")
    assert f"same label {query['positives']}" in facts
    assert f"first hit at rank {query['first_hit_rank']}" in facts
    assert f"average precision {fixed(query['average_precision'])}" in facts
    scores = visit.api("scores")
    page.wait_for_selector("#totals div:nth-child(5)")
    totals = page.locator("#totals").inner_text().replace("\n", " ")
    assert f"Recall@1 {fixed(scores['metrics']['recall@1'] * 100, 1)} %" in totals
    assert f"MAP@R {fixed(scores['metrics']['map@r'] * 100, 1)} %" in totals
    assert "images 33 labels 4 " in totals


def test_label_and_text_filter_images_and_results(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    page.get_by_label("Text", exact=True).fill("AGAIN")
    page.wait_for_selector("h2:text-is('1 matching image')")
    assert len(captions(page, "All images")) == 1
    page.get_by_role("button", name="Clear").click()
    page.wait_for_selector(".welcome")
    page.get_by_label("Label", exact=True).fill("sky")
    page.get_by_label("Label", exact=True).press("Enter")
    page.wait_for_selector("h2:text-is('8 matching images')")
    page.locator(".tile a").first.click()
    page.wait_for_selector(".query")
    found = visit.api("images/16/search?k=24&label=sky")["results"]
    shown = captions(page, "Nearest images")
    assert [words[0] for words in shown] == [str(result["rank"]) for result in found]
    assert {words[2] for words in shown} == {"sky"}


def test_near_duplicates_can_be_hidden(visit: Visit) -> None:
    page = visit.open("?query=0&k=24", wait=".query")
    assert page.get_by_text("≈ duplicate").count() == 1
    page.get_by_label("Hide near-duplicates").check()
    page.wait_for_selector("text=1 near-duplicate hidden")
    assert page.get_by_text("≈ duplicate").count() == 0
    assert page.url.endswith("?query=0&unique=1")


def test_the_slider_leaves_out_improbable_results(visit: Visit) -> None:
    page = visit.open("?query=0&k=24", wait=".query")
    found = visit.api("images/0/search?k=24")["results"]
    chances = sorted(result["probability"] for result in found)
    least = round((chances[8] + chances[15]) / 2, 2)
    kept = visit.api(f"images/0/search?k=24&min_probability={least}")["results"]
    assert 0 < len(kept) < 24, "the test needs a least probability that leaves some out"
    page.get_by_label("Least match probability").fill(str(least))
    page.wait_for_url(f"**probability={least}**")
    page.wait_for_selector(f".search h2:text-matches('^{len(kept)} nearest')")
    shown = captions(page, "Nearest images")
    assert [words[0] for words in shown] == [str(result["rank"]) for result in kept]
    assert page.locator("#probability-value").inner_text().startswith("≥ ")
    visit.open(f"?query=0&k=24&probability={least}", wait=".query")
    assert len(captions(page, "Nearest images")) == len(kept)
