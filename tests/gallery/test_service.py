"""The service answers as the library does."""

import io
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cbml.gallery import Gallery, SearchOptions
from cbml.gallery.results import Query
from cbml.gallery.scores import worst_queries
from cbml.gallery.service import make_app, make_service
from tests.gallery import small
from tests.gallery.asgi import Client
from tests.gallery.requests import API, image_bytes, message, upload


def test_info(client: Client, lone: Client, gallery: Gallery) -> None:
    info = client.get(f"{API}/info").json()
    assert info["images"] == len(gallery)
    assert info["labeled"] == len(gallery) - 1
    assert (info["labels"], info["bad"], info["dim"]) == (small.CLASSES, 1, 8)
    assert (info["compare"], info["has_scores"], info["has_map"]) == ("second", True, True)
    assert info["has_probability"] is False
    assert lone.get(f"{API}/info").json()["compare"] is None
    assert client.get(f"{API}/info?which=compare").json()["name"] == "second"


def test_lists(client: Client, gallery: Gallery) -> None:
    labels = client.get(f"{API}/labels").json()["labels"]
    assert labels[0] == {"label": "class 0", "count": small.EACH}
    listed = client.get(f"{API}/images?limit=500").json()
    assert [one["id"] for one in listed["images"]] == gallery.ids.tolist()
    page = client.get(f"{API}/images?limit=3&offset=4").json()
    assert page["images"] == listed["images"][4:7]
    assert page["total"] == len(gallery)
    some = client.get(f"{API}/images", params={"label": "class 1", "text": "/3.P"}).json()
    assert [one["name"] for one in some["images"]] == ["class 1/3.png"]
    assert client.get(f"{API}/images?offset=999999").json()["images"] == []


def test_a_image(client: Client, gallery: Gallery) -> None:
    image = gallery.images[5]
    detail = client.get(f"{API}/images/{image.id}").json()
    assert (detail["name"], detail["width"], detail["height"]) == (image.name, 60, 45)
    assert detail["trained_on"] is None
    assert "path" not in detail
    assert detail["same_content"] == []


def test_searches_equal_those_of_the_library(client: Client, gallery: Gallery) -> None:
    for number, options in [
        (0, SearchOptions(k=4)),
        (7, SearchOptions(k=9, label="class 1", hide_duplicates=True)),
    ]:
        given = {"k": options.k, "hide_duplicates": str(options.hide_duplicates).lower()}
        given |= {"label": options.label} if options.label else {}
        answer = client.get(f"{API}/images/{number}/search", params=given).json()
        expected = json.loads(
            json.dumps(gallery.search(gallery.image_query(number), options).as_dict())
        )
        assert answer.pop("took_ms") >= 0
        assert answer == expected
    body = image_bytes()
    answer = upload(client, body, f"{API}/search?k=5").json()
    del answer["took_ms"]
    assert answer == json.loads(
        json.dumps(gallery.search(gallery.query(body), SearchOptions(k=5)).as_dict())
    )


def test_two_galleries(client: Client, lone: Client, second: Gallery) -> None:
    both = client.get(f"{API}/compare/3?k=5").json()
    assert [len(both[side]["results"]) for side in ("main", "compare")] == [5, 5]
    assert both["query"] == both["main"]["query"]
    assert upload(client, image_bytes(), f"{API}/compare?k=2").status_code == 200
    answer = client.get(f"{API}/images/3/search?which=compare&k=3").json()
    expected = second.search(second.image_query(3), SearchOptions(k=3)).as_dict()["results"]
    assert answer["results"] == json.loads(json.dumps(expected))
    assert message(lone.get(f"{API}/compare/3")).startswith("one gallery")
    assert lone.get(f"{API}/compare/3").status_code == 404
    assert lone.get(f"{API}/info?which=compare").status_code == 400


def test_scores_worst_and_map(client: Client, gallery: Gallery) -> None:
    scores = client.get(f"{API}/scores").json()
    assert scores["queries"] == len(gallery) - 1
    worst = client.get(f"{API}/worst?limit=500").json()
    assert [one["id"] for one in worst["images"]] == gallery.ids[worst_queries(gallery)].tolist()
    only = client.get(f"{API}/worst", params={"label": "class 4"}).json()
    assert only["total"] == small.EACH
    places = client.get(f"{API}/map").json()
    assert len({len(places[name]) for name in ("ids", "x", "y", "labels")}) == 1
    assert places["labels"].count(-1) == 1
    assert places["label_names"][places["labels"][0]] == gallery.images[0].label or "alone" in (
        gallery.images[0].name
    )


def test_thumbnails_are_small_new_images(client: Client, tmp_path: Path) -> None:
    for size in (96, 192, 384):
        answer = client.get(f"{API}/images/2/thumbnail?size={size}")
        image = Image.open(io.BytesIO(answer.content))
        assert (answer.headers["content-type"], image.format) == ("image/jpeg", "JPEG")
        assert max(image.size) <= size
    again = client.get(
        f"{API}/images/2/thumbnail?size=384", headers={"if-none-match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(f"{API}/images/2/image").headers["content-type"] == "image/jpeg"


def test_metadata_stays_at_home(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    exif[0x0112] = 6
    small.save(tmp_path / "p" / "a.jpg", 1, exif=exif, comment=b"secret comment")
    small.save(tmp_path / "p" / "b.jpg", 2)
    small.built(tmp_path / "p", tmp_path / "g")
    with (
        Gallery(tmp_path / "g") as opened,
        Client(make_app(opened, hosts={"testserver"})) as client,
    ):
        client.headers["host"] = "testserver"
        for what in ("thumbnail", "image"):
            content = client.get(f"{API}/images/0/{what}").content
            assert b"secret" not in content
            assert b"Exif" not in content
            assert Image.open(io.BytesIO(content)).size[1] > 45  # upright
        (tmp_path / "p" / "b.jpg").unlink()
        gone = client.get(f"{API}/images/1/thumbnail")
        assert gone.status_code == 404
        assert "cannot be opened" in message(gone)
        assert str(tmp_path) not in gone.text
        assert client.get(f"{API}/images/1/search").status_code == 200


def test_names_that_are_no_text(tmp_path: Path) -> None:
    small.save(tmp_path / "p" / "a.png", 1)
    small.save(tmp_path / "p" / "<script>.png", 2)
    os.rename(tmp_path / "p" / "a.png", os.fsencode(tmp_path / "p") + b"/\xff\xfe.png")
    small.built(tmp_path / "p", tmp_path / "g")
    with Gallery(tmp_path / "g") as opened, Client(make_app(opened, hosts={"*"})) as client:
        for path in ("images", "images/0", "images/0/search", "map", "info"):
            answer = client.get(f"{API}/{path}")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
        assert client.get(f"{API}/images/0/thumbnail").status_code == 200


def test_health_and_metrics(client: Client, gallery: Gallery) -> None:
    assert client.get("/health").json() == {"status": "ok", "images": len(gallery)}
    client.get(f"{API}/images/123456")
    client.get("/nothing/of/the/kind")
    text = client.get("/metrics").text
    assert re.search(r'cbml_requests_total\{route="/api/v1/images/\{id\}",status="404"\} \d', text)
    assert "nothing" not in text  # strangers cannot fill it with names
    assert f"cbml_images {len(gallery)}" in text
    for line in text.splitlines():
        assert re.fullmatch(
            r"# TYPE \w+ (counter|gauge)|\w+(\{[^{}]*(\{id\}[^{}]*)?\})? [\d.e+]+", line
        )


def test_only_the_thread_that_searches_computes(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    embed = gallery.framed_queries

    def noted(*images: Any) -> list[Query]:
        seen.append(threading.current_thread().name)
        return embed(*images)

    monkeypatch.setattr(gallery, "framed_queries", noted)
    service, app = make_service(gallery, hosts={"*"})
    service.warm_up()
    with Client(app) as client:
        assert upload(client, image_bytes()).status_code == 200
    service.close()
    assert seen == ["cbml-search_0", "cbml-search_0"]


def test_a_search_leaves_the_model_ready_for_the_next(gallery: Gallery) -> None:
    gallery.query(Image.new("RGB", (60, 45), "green"))
    assert not any(module.training for module in gallery.model().modules())
