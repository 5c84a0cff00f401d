"""What the page says of probabilities, training images and labels; commands that find the same."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbml.cli import main
from cbml.gallery import BuildSettings, Gallery, ImageRef, build
from cbml.models import Embedder
from tests.gallery.page.visits import PROGRAM, Visit, draw_image, make_gallery, serving


def ranks(page: Any, name: str = "Nearest images") -> list[int]:
    badges = page.get_by_role("list", name=name).locator(".rank")
    return [int(text) for text in badges.all_inner_texts()]


def test_results_can_be_sorted_by_probability_and_the_page_says_why(visit: Visit) -> None:
    page = visit.open("?query=0&k=12", wait=".query")
    assert ranks(page) == list(range(1, 13))
    page.get_by_label("Sort").select_option("probability")
    page.wait_for_url("**/?query=0&k=12&sort=probability")
    page.wait_for_selector("text=most probable first")
    found = visit.api("images/0/search?k=12&sort=probability")["results"]
    assert ranks(page) == [result["rank"] for result in found]
    chances = [result["probability"] for result in found]
    assert chances == sorted(chances, reverse=True)
    explanation = page.locator("#why p")
    assert not explanation.is_visible()
    page.locator("#why summary").click()
    assert explanation.inner_text().count(".") == 1  # one sentence
    assert "a result further down can be more probable" in explanation.inner_text()
    page.keyboard.press("Escape")
    assert not explanation.is_visible()
    page.get_by_label("Sort").select_option("similarity")
    page.wait_for_url("**/?query=0&k=12")


def test_the_page_says_when_nothing_is_likely(
    visit: Visit, visit_of: Any, main_gallery: Path
) -> None:
    page = visit.open("?query=0&k=12", wait=".query")
    chances = [one["probability"] for one in visit.api("images/0/search?k=12")["results"]]
    assert page.locator(".unlikely").count() == (max(chances) < 0.5)
    with serving(main_gallery) as url, visit_of(url) as other:

        def lowered(route: Any) -> None:
            answer = route.fetch().json()
            for result in answer["results"]:
                result["probability"] *= 0.49
            route.fulfill(json=answer)

        other.page.route("**/api/v1/images/0/search*", lowered)
        other.open("?query=0&k=12", wait=".unlikely")
        words = other.page.locator(".unlikely").inner_text()
        assert words.startswith("Nothing here is likely to show the same thing.")
        assert f"{int(max(chances) * 49 + 0.5)} %" in words


def test_the_header_says_what_was_tested_and_what_was_trained_on(
    visit: Visit, visit_of: Any, images: list[ImageRef], tmp_path: Path
) -> None:
    page = visit.open(wait=".tile")
    check = visit.api("info")["probability_check"]
    words = page.locator("#about").inner_text()
    assert f"tested on {check['results']:,} search results" in words
    assert f"{100 * check['error']:.1f} points off" in words
    assert "images held out of training" in words
    assert "Whether training images are among these is not known." in words
    model = Embedder("conv4", dim=16, weights="none", seed=0)
    for paths, expected in (
        ({images[0].path, images[3].path}, "2 of these images were used in training"),
        (set(), "None of these images was used in training."),
        ({image.path for image in images}, "All of these images were used in training"),
    ):
        build(model, images, tmp_path / "g", trained_on=paths)
        with serving(tmp_path / "g") as url, visit_of(url) as other:
            other.open(wait=".tile")
            assert expected in other.page.locator("#about").inner_text()
            assert other.api("images/3")["trained_on"] is (images[3].path in paths)


def test_the_header_says_when_the_model_knows_the_classes(
    visit_of: Any, images: list[ImageRef], tmp_path: Path
) -> None:
    model = Embedder("conv4", dim=16, weights="none", seed=0)
    labels = len({image.label for image in images if image.label})
    none, two = set[str](), {images[0].path, images[3].path}
    scores = "cores are for new images of known classes: the model was trained on"
    for known, paths, expected in (
        (None, none, None),  # as in galleries of earlier versions
        (labels, none, f"training. S{scores} all of these {labels} labels."),
        (labels - 1, none, f"training. S{scores} {labels - 1} of these {labels} labels."),
        (labels, two, f". The other s{scores} all of these {labels} labels."),
        (0, none, None),
    ):
        settings = BuildSettings(known_labels=known)
        build(model, images, tmp_path / "g", trained_on=paths, settings=settings)
        assert ("known_labels" in (tmp_path / "g" / "manifest.json").read_text()) == (
            known is not None
        )
        with serving(tmp_path / "g") as url, visit_of(url) as other:
            other.open(wait=".tile")
            words = other.page.locator("#about").inner_text()
            assert other.api("info")["known_labels"] == known
            assert (expected or "training.") in words
            assert ("known classes" in words) == (expected is not None)


def test_probabilities_fitted_to_the_gallery_are_told_from_others(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    refs = []
    for number in range(240):
        path = tmp_path / f"{number}.png"
        color = tuple((np.array([7, 60, 110]) * (1 + number // 40) % 256).tolist())
        draw_image(path, color, seed=int(random.integers(10**6)))  # type: ignore[arg-type]
        refs.append(ImageRef(str(path), path.name, str(number // 40)))
    from cbml.gallery.scores import probability_check

    for folder, listed, on in (("few", refs[:44], "held-out"), ("many", refs, "gallery")):
        with Gallery(make_gallery(tmp_path / folder, listed, calibrated=True)) as opened:
            check = probability_check(opened)
            assert check is not None
            assert check["on"] == on


@pytest.mark.parametrize(
    "state",
    [
        "?query=3&k=12",
        "?query=3&k=12&label=CHERRY&unique=1",
        "?query=3&k=12&text=it%27s",
        "?query=3&k=12&text=png&probability=0.01&sort=probability",
    ],
)
def test_the_command_finds_what_the_page_shows(
    visit: Visit, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = visit.open(state, wait=".query")
    words = shlex.split(page.locator(".query .command code").inner_text())
    program, words = words[: words.index("search")], words[words.index("search") :]
    assert shlex.join(program) == PROGRAM
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([*words, "--json"])
    assert not end.value.code
    found = json.loads(capsys.readouterr().out)[0]["results"]
    shown = ranks(page) if found else []
    assert shown == [result["rank"] for result in found]
    assert bool(found) is ("it%27s" not in state)


def test_labels_in_any_case_with_suggestions(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    field = page.get_by_label("Label", exact=True)
    field.fill("S")
    page.wait_for_function("() => document.querySelectorAll('#labels option').length === 2")
    options = page.locator("#labels option").evaluate_all("(all) => all.map((one) => one.value)")
    assert options == ["sand", "sky"]
    field.fill("CHERRY")
    field.press("Enter")
    page.wait_for_selector("h2:text-is('9 matching images')")
    field.fill("chery")
    field.press("Enter")
    page.wait_for_selector("h2:text-is('There is no label “chery”')")
    page.get_by_role("link", name="cherry").click()
    page.wait_for_selector("h2:text-is('9 matching images')")
    for view, shown in (("worst", ".worst .row"), ("map", ".plot"), ("confusions", ".row")):
        visit.open(f"?view={view}&label=chery", wait=".notice")
        page.get_by_role("link", name="cherry", exact=True).click()
        page.wait_for_selector(shown)
    visit.open("?query=3&label=nothing+like+it", wait=".query")
    assert page.get_by_text("No label resembles it.").is_visible()
    nested = """async () => (await import("./labels.js"))
        .similarLabels(["Fruit/Apple/Pink-Lady", "Fruit/Banana"], "bananna")"""
    assert page.evaluate(nested) == ["Fruit/Banana"], "by the last part of a path, too"
    middle = """async () => (await import("./labels.js"))
        .similarLabels(["Fruit/Tangerine", "Roots/Tomato/Beef", "Greens/Vine-Tomato"], "tomatto")"""
    assert page.evaluate(middle) == ["Roots/Tomato/Beef", "Greens/Vine-Tomato"], "by any word"


def test_a_late_answer_does_not_bring_back_labels_that_do_not_fit(visit: Visit) -> None:
    page = visit.open(wait=".tile")
    held: list[Any] = []

    def hold_the_first(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/api/v1/labels*", hold_the_first)
    field = page.get_by_label("Label", exact=True)
    field.focus()
    field.fill("S")
    page.wait_for_function("() => document.querySelectorAll('#labels option').length === 2")
    with page.expect_response("**/api/v1/labels*"):
        held[0].continue_()
    page.wait_for_timeout(200)
    options = page.locator("#labels option").evaluate_all("(all) => all.map((one) => one.value)")
    assert options == ["sand", "sky"]


def test_filters_that_leave_nothing_say_so_and_can_be_cleared(visit: Visit) -> None:
    for state in ("?text=no+such+text", "?query=3&text=no+such+text"):
        page = visit.open(state, wait=".notice")
        assert page.get_by_role("heading", name="No image matches").is_visible()
        page.get_by_role("button", name="Clear filters").click()
        page.wait_for_selector(".tile")
