"""Worst queries, two models, the map, details."""

from typing import Any

from tests.gallery.page.visits import PROGRAM, Visit, fixed


def test_worst_queries_come_first(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    page.get_by_role("link", name="Worst queries").click()
    page.wait_for_selector(".worst .row")
    found = visit.api("worst?limit=20")["images"]
    precisions = [query["average_precision"] for query in found]
    assert precisions == sorted(precisions)
    assert precisions[0] < precisions[-1]
    rows = page.locator(".worst .row").all()
    assert len(rows) == 20
    for row, query in zip(rows, found, strict=True):
        words = row.locator(".facts").inner_text().replace("\n", " ")
        assert f"first hit at rank {query['first_hit_rank']}" in words
        assert f"average precision {fixed(query['average_precision'])}" in words
    strip = rows[0].locator(".strip .tile")
    strip.first.wait_for()
    wrong = [row["relevant"] for row in visit.api(f"images/{found[0]['id']}/search?k=8")["results"]]
    assert [tile.inner_text().split("\n")[1] == "✓" for tile in strip.all()] == wrong
    page.get_by_role("button", name="Show more").click()
    page.wait_for_selector(".worst .row:nth-child(33)")


def test_two_models_side_by_side_with_moved_ranks(visit: Visit) -> None:
    page = visit.open("?query=5&k=12", wait=".query")
    page.get_by_role("link", name="Compare", exact=True).last.click()
    page.wait_for_selector(".pair")
    answer = visit.api("compare/5?k=12")
    for side, name in (("main", "discs"), ("compare", "second")):
        tiles = page.get_by_role("list", name=f"Nearest by {name}").locator(".tile").all()
        assert len(tiles) == 12
        for tile, result in zip(tiles, answer[side]["results"], strict=True):
            assert tile.locator(".moved").inner_text() == moved_words(result)
            assert (
                tile.locator("img")
                .evaluate("(image) => image.src")
                .endswith("which=compare" if side == "compare" else "size=192")
            )
    assert any(result["moved"] for result in answer["main"]["results"])
    page.get_by_role("list", name="Nearest by second").locator(".tile a").first.click()
    other = answer["compare"]["results"][0]["other_id"]
    page.wait_for_url(f"**/?view=compare&query={other}&k=12")


def moved_words(result: dict[str, Any]) -> str:
    moved, there = result["moved"], result["other_rank"]
    if moved is None:
        return "not in the other"
    return (
        "= same rank" if moved == 0 else f"{'▲' if moved > 0 else '▼'} {abs(moved)} (there {there})"
    )


def screen_places(visit: Visit) -> dict[int, tuple[float, float]]:
    """Where each image lies on the screen: the whole map fits into a square below the buttons."""
    box = visit.page.locator(".plot canvas").last.bounding_box()
    side = min(box["width"] - 70, box["height"] - 60 - 35)
    left = box["x"] + (box["width"] - side) / 2
    top = box["y"] + (box["height"] + 60 - 35 - side) / 2
    data = visit.api("map")
    columns = zip(data["ids"], data["x"], data["y"], strict=True)
    return {i: (left + x / 65535 * side, top + (1 - y / 65535) * side) for i, x, y in columns}


def test_the_map_shows_a_image_under_the_pointer_and_a_click_searches(visit: Visit) -> None:
    page = visit.open("?view=map", wait=".plot")
    places = screen_places(visit)
    tools = page.locator(".tools").bounding_box()
    assert min(y for _, y in places.values()) > tools["y"] + tools["height"] + 6, "none is covered"
    number, (x, y) = max(places.items(), key=lambda item: apart(item, places))
    page.mouse.move(x, y)
    page.wait_for_selector(".hover:visible")
    assert f"/images/{number}/thumbnail" in page.locator(".hover img").get_attribute("src")
    assert page.locator(".hover").inner_text() == visit.api(f"images/{number}")["label"]
    page.mouse.click(x, y)
    page.wait_for_url(f"**/?query={number}")


def apart(item: tuple[int, tuple[float, float]], places: dict[int, tuple[float, float]]) -> float:
    """How far an image is from its nearest neighbor, so that the pointer can mean only it."""
    number, (x, y) = item
    others = [place for other, place in places.items() if other != number]
    return min((x - u) ** 2 + (y - v) ** 2 for u, v in others)


def test_a_lasso_lists_what_it_encloses(visit: Visit) -> None:
    page = visit.open("?view=map", wait=".plot")
    places = screen_places(visit)
    middle = sorted(x for x, _ in places.values())[16] + 0.5
    box = page.locator(".plot canvas").last.bounding_box()
    edge, low, high = box["x"] + 4, box["y"] + 60, box["y"] + box["height"] - 4
    page.mouse.move(edge, low)
    page.mouse.down()
    for x, y in [(middle, low), (middle, high), (edge, high), (edge, low + 5)]:
        page.mouse.move(x, y, steps=4)
    page.mouse.up()
    page.wait_for_selector(".chosen .tile")
    inside = {i for i, (x, y) in places.items() if x < middle - 1 and low < y < high}
    unsure = {i for i, (x, y) in places.items() if abs(x - middle) < 2 or abs(y - low) < 2}
    buttons = page.locator(".chosen [data-detail]")
    chosen = {int(button.get_attribute("data-detail")) for button in buttons.all()}
    assert inside - unsure <= chosen <= inside | unsure
    assert 0 < len(chosen) < 33
    page.reload()  # the outline is part of the address
    page.wait_for_selector(".chosen .tile")
    assert page.locator(".chosen .tile").count() == len(chosen)
    page.get_by_role("link", name="Clear outline").click()
    page.wait_for_selector(".chosen .tile", state="detached")


INK = """() => {
  const canvas = document.querySelector(".plot canvas");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.filter((_, i) => i % 4 === 3).reduce((sum, alpha) => sum + alpha, 0);
}"""


def test_the_map_dims_other_labels(visit: Visit) -> None:
    page = visit.open("?view=map", wait=".plot")
    page.wait_for_timeout(300)
    page.wait_for_load_state("networkidle")
    everything = page.evaluate(INK)
    page.get_by_label("Label", exact=True).fill("sand")
    page.get_by_label("Label", exact=True).press("Enter")
    page.wait_for_url("**label=sand**")
    page.wait_for_timeout(500)
    assert 0 < page.evaluate(INK) < 0.7 * everything


def test_details_have_a_command_that_can_be_copied(visit: Visit) -> None:
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visit.open("?query=3", wait=".query")
    first = visit.api("images/3/search?k=24")["results"][0]
    page.get_by_role("button", name=f"Details of {first['name']}").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("heading", name=first["name"]).wait_for()
    known = visit.api(f"images/{first['id']}")
    words = dialog.locator(".facts").inner_text()
    for value in (
        known["label"],
        fixed(first["similarity"], 4),
        f"{known['width']} × {known['height']}",
    ):
        assert value in words
    dialog.get_by_role("button", name="Copy").click()
    page.wait_for_selector("#toast:visible")
    folder = visit.api("info")["folder"]
    command = f"{PROGRAM} search {folder} --id {first['id']} --k 24"
    assert page.evaluate("navigator.clipboard.readText()") == command
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail:not([open])", state="attached")
    assert page.url.endswith("?query=3")


def test_the_arrow_keys_turn_pages_of_the_details(visit: Visit) -> None:
    page = visit.open("?detail=1", wait="#detail[open] .facts")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#detail-title:text-is('cherry/2.png')")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#detail-title:text-is('cherry/1.png')")
    page.get_by_role("link", name="Search with this image").click()
    page.wait_for_url("**/?query=1")
    page.wait_for_selector("#detail", state="hidden")


def test_a_map_of_many_points_can_be_looked_at_closely(visit: Visit) -> None:
    """Thousands of points are written as pixels, a few are drawn, as images where there are any."""
    page = visit.open()
    asked = page.evaluate(
        """async () => {
          const { Plot, groupColors } = await import("./plot.js");
          const canvas = document.createElement("canvas");
          canvas.style.cssText = "width: 400px; height: 400px";
          document.body.append(canvas);
          const places = Float64Array.from({ length: 5000 }, (_, i) => (i % 71) / 71);
          const others = Float64Array.from({ length: 5000 }, (_, i) => Math.floor(i / 71) / 71);
          const colors = groupColors(new Array(5000).fill(0), false);
          const plot = new Plot(places, others, colors, canvas);
          const asked = [];
          plot.image = (i) => { asked.push(i); return null; };
          plot.resize();
          const all = plot.draw();
          plot.zoom(30);
          const few = plot.draw();
          plot.fit();
          return { all, few, asked: asked.length, again: plot.draw() };
        }"""
    )
    assert asked["all"] == asked["again"] == 5000
    assert 0 < asked["few"] == asked["asked"] <= 160
