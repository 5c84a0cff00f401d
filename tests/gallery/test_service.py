"""The service answers as the library does and lets nobody in."""

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from cbml.gallery import Gallery, Wish
from cbml.gallery.endpoints import Endpoints
from cbml.gallery.guard import HEADERS, allowed_hosts
from cbml.gallery.openapi import PREFIX, openapi
from cbml.gallery.parameters import Parameter
from cbml.gallery.routes import ROUTES, Route
from cbml.gallery.service import make_app
from cbml.gallery.thumbnails import ByteCache
from tests.data import kinds
from tests.gallery import hostile, small
from tests.gallery.asgi import Client

API = "/api/v1"


@pytest.fixture(scope="module")
def client(gallery: Gallery, second: Gallery) -> Iterator[Client]:
    app = make_app(gallery, hosts=allowed_hosts("127.0.0.1"), compare=second)
    with Client(app) as opened:
        yield opened


@pytest.fixture(scope="module")
def lone(gallery: Gallery) -> Iterator[Client]:
    with Client(make_app(gallery, hosts=allowed_hosts("127.0.0.1"))) as opened:
        yield opened


def picture_bytes(seed: int = 201, kind: str = "PNG") -> bytes:
    output = io.BytesIO()
    small.draw(seed).save(output, format=kind)
    return output.getvalue()


def upload(client: Client, body: bytes, path: str = f"{API}/search") -> httpx.Response:
    return client.post(path, content=body, headers={"content-type": "image/png"})


def message(answer: httpx.Response) -> str:
    """The one line of an error; fails where there is none."""
    error = answer.json()["error"]
    assert error["status"] == answer.status_code
    assert "\n" not in error["message"]
    return str(error["message"])


# What it answers


def test_info(client: Client, lone: Client, gallery: Gallery) -> None:
    info = client.get(f"{API}/info").json()
    assert info["pictures"] == len(gallery)
    assert info["labelled"] == len(gallery) - 1
    assert (info["labels"], info["bad"], info["dim"]) == (small.CLASSES, 1, 8)
    assert (info["compare"], info["has_scores"], info["has_map"]) == ("second", True, True)
    assert info["has_probability"] is False
    assert lone.get(f"{API}/info").json()["compare"] is None
    assert client.get(f"{API}/info?which=compare").json()["name"] == "second"


def test_lists(client: Client, gallery: Gallery) -> None:
    labels = client.get(f"{API}/labels").json()["labels"]
    assert labels[0] == {"label": "class 0", "count": small.EACH}
    listed = client.get(f"{API}/pictures?limit=500").json()
    assert [one["id"] for one in listed["pictures"]] == gallery.ids.tolist()
    page = client.get(f"{API}/pictures?limit=3&offset=4").json()
    assert page["pictures"] == listed["pictures"][4:7]
    assert page["total"] == len(gallery)
    some = client.get(f"{API}/pictures", params={"label": "class 1", "text": "/3.P"}).json()
    assert [one["name"] for one in some["pictures"]] == ["class 1/3.png"]
    assert client.get(f"{API}/pictures?offset=999999").json()["pictures"] == []


def test_a_picture(client: Client, gallery: Gallery) -> None:
    picture = gallery.pictures[5]
    detail = client.get(f"{API}/pictures/{picture.id}").json()
    assert (detail["name"], detail["width"], detail["height"]) == (picture.name, 60, 45)
    assert detail["command"].endswith(f"--id {picture.id} --k 10")
    assert "path" not in detail
    assert detail["same_content"] == []


def test_searches_equal_those_of_the_library(client: Client, gallery: Gallery) -> None:
    for number, wish in [(0, Wish(k=4)), (7, Wish(k=9, label="class 1", hide_duplicates=True))]:
        given_wish = {"k": wish.k, "hide_duplicates": str(wish.hide_duplicates).lower()}
        given_wish |= {"label": wish.label} if wish.label else {}
        answer = client.get(f"{API}/pictures/{number}/search", params=given_wish).json()
        expected = json.loads(
            json.dumps(gallery.search(gallery.picture_query(number), wish).as_dict())
        )
        assert answer.pop("took_ms") >= 0
        assert answer == expected
    body = picture_bytes()
    answer = upload(client, body, f"{API}/search?k=5").json()
    del answer["took_ms"]
    assert answer == json.loads(
        json.dumps(gallery.search(gallery.query(body), Wish(k=5)).as_dict())
    )


def test_two_galleries(client: Client, lone: Client, second: Gallery) -> None:
    both = client.get(f"{API}/compare/3?k=5").json()
    assert [len(both[side]["results"]) for side in ("main", "compare")] == [5, 5]
    assert both["query"] == both["main"]["query"]
    assert upload(client, picture_bytes(), f"{API}/compare?k=2").status_code == 200
    answer = client.get(f"{API}/pictures/3/search?which=compare&k=3").json()
    expected = second.search(second.picture_query(3), Wish(k=3)).as_dict()["results"]
    assert answer["results"] == json.loads(json.dumps(expected))
    assert message(lone.get(f"{API}/compare/3")).startswith("one gallery")
    assert lone.get(f"{API}/compare/3").status_code == 404
    assert lone.get(f"{API}/info?which=compare").status_code == 400


def test_scores_worst_and_map(client: Client, gallery: Gallery) -> None:
    scores = client.get(f"{API}/scores").json()
    assert scores["queries"] == len(gallery) - 1
    worst = client.get(f"{API}/worst?limit=500").json()
    assert [one["id"] for one in worst["pictures"]] == gallery.ids[gallery.worst].tolist()
    only = client.get(f"{API}/worst", params={"label": "class 4"}).json()
    assert only["total"] == small.EACH
    places = client.get(f"{API}/map").json()
    assert len({len(places[name]) for name in ("ids", "x", "y", "labels")}) == 1
    assert places["labels"].count(-1) == 1
    assert places["label_names"][places["labels"][0]] == gallery.pictures[0].label or "alone" in (
        gallery.pictures[0].name
    )


def test_thumbnails_are_small_new_pictures(client: Client, tmp_path: Path) -> None:
    for size in (96, 192, 384):
        answer = client.get(f"{API}/pictures/2/thumbnail?size={size}")
        picture = Image.open(io.BytesIO(answer.content))
        assert (answer.headers["content-type"], picture.format) == ("image/jpeg", "JPEG")
        assert max(picture.size) <= size
    again = client.get(
        f"{API}/pictures/2/thumbnail?size=384", headers={"if-none-match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(f"{API}/pictures/2/image").headers["content-type"] == "image/jpeg"


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
            content = client.get(f"{API}/pictures/0/{what}").content
            assert b"secret" not in content
            assert b"Exif" not in content
            assert Image.open(io.BytesIO(content)).size[1] > 45  # upright
        (tmp_path / "p" / "b.jpg").unlink()
        gone = client.get(f"{API}/pictures/1/thumbnail")
        assert gone.status_code == 404
        assert "cannot be opened" in message(gone)
        assert str(tmp_path) not in gone.text
        assert client.get(f"{API}/pictures/1/search").status_code == 200


def test_names_that_are_no_text(tmp_path: Path) -> None:
    small.save(tmp_path / "p" / "a.png", 1)
    small.save(tmp_path / "p" / "<script>.png", 2)
    os.rename(tmp_path / "p" / "a.png", os.fsencode(tmp_path / "p") + b"/\xff\xfe.png")
    small.built(tmp_path / "p", tmp_path / "g")
    with Gallery(tmp_path / "g") as opened, Client(make_app(opened, hosts={"*"})) as client:
        for path in ("pictures", "pictures/0", "pictures/0/search", "map", "info"):
            answer = client.get(f"{API}/{path}")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
        assert client.get(f"{API}/pictures/0/thumbnail").status_code == 200


def test_health_and_metrics(client: Client, gallery: Gallery) -> None:
    assert client.get("/health").json() == {"status": "ok", "pictures": len(gallery)}
    client.get(f"{API}/pictures/123456")
    client.get("/nothing/of/the/kind")
    text = client.get("/metrics").text
    assert re.search(
        r'cbml_requests_total\{route="/api/v1/pictures/\{id\}",status="404"\} \d', text
    )
    assert "nothing" not in text  # strangers cannot fill it with names
    assert f"cbml_pictures {len(gallery)}" in text
    for line in text.splitlines():
        assert re.fullmatch(
            r"# TYPE \w+ (counter|gauge)|\w+(\{[^{}]*(\{id\}[^{}]*)?\})? [\d.e+]+", line
        )


# What it refuses


@pytest.mark.parametrize("path", hostile.TRAVERSALS)
def test_nothing_outside_is_served(client: Client, path: str) -> None:
    answer = client.raw(path)
    assert answer.status_code in (400, 404)
    assert b"root:" not in answer.content
    assert b"import" not in answer.content


def test_there_are_sixty_spellings_and_twenty_addresses() -> None:
    assert len(set(hostile.TRAVERSALS)) >= 60
    assert len(set(hostile.ADDRESSES)) >= 20


@pytest.mark.parametrize("address", hostile.ADDRESSES)
def test_no_address_is_ever_fetched(
    client: Client, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    def refuse(*_: object) -> None:
        raise AssertionError("the service opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    headers = {"content-type": "image/png"}
    for answer in [
        client.post(f"{API}/search", content=address.encode(), headers=headers),
        client.post(f"{API}/search", params={"url": address}, content=b"x", headers=headers),
        client.get(f"{API}/pictures/0/search", params={"text": address}),
        client.get(f"{API}/pictures/{httpx.QueryParams({'a': address})}"),
        client.post(f"{API}/search", content=json.dumps({"url": address}).encode()),
    ]:
        assert answer.status_code in (200, 400, 404, 415, 422)
        if answer.status_code == 200:
            assert answer.json()["results"] == []


@pytest.mark.parametrize("host", hostile.HOSTS)
def test_foreign_hosts_are_refused(client: Client, host: str) -> None:
    answer = client.get("/health", headers={"host": host})
    assert answer.status_code == 421
    assert "pictures" not in answer.text


def test_own_names_are_not(client: Client, gallery: Gallery) -> None:
    for host in ("localhost", "LocalHost:8000", "127.0.0.1:1", "[::1]:8000", "[::1]"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    hosts = allowed_hosts("0.0.0.0", ["pictures.example.org"])
    with Client(make_app(gallery, hosts=hosts)) as open_to_all:
        for host, status in [
            ("10.1.2.3:8000", 200),
            ("[fe80::1]", 200),
            ("Pictures.Example.org", 200),
            ("evil.example", 421),
        ]:
            assert open_to_all.get("/health", headers={"host": host}).status_code == status


def test_other_sites_are_refused(client: Client) -> None:
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        assert client.get(f"{API}/pictures/0/thumbnail", headers=headers).status_code == 403
        visit = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
        assert client.get("/health", headers=visit).status_code == 200
        assert client.post(f"{API}/search", content=b"x", headers=visit).status_code == 403
    same = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert client.get("/health", headers=same).status_code == 200


def test_headers_of_every_answer(client: Client) -> None:
    for answer in [
        client.get("/health"),
        client.get("/nothing"),
        client.get(f"{API}/info?x=1"),
        client.get("/health", headers={"host": "evil.example"}),
        client.get(f"{API}/pictures/0/thumbnail"),
        client.request("DELETE", f"{API}/info"),
    ]:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "default-src 'self'" in HEADERS["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/pictures/0/search?k=0", 400),
        ("/pictures/0/search?k=501", 400),
        ("/pictures/0/search?k=1e3", 400),
        ("/pictures/0/search?k=-1", 400),
        ("/pictures/0/search?k=%D9%A3", 400),
        ("/pictures/0/search?k=99999999999999999999999", 400),
        ("/pictures/0/search?k=5&k=6", 400),
        ("/pictures/0/search?K=5", 400),
        ("/pictures/0/search?min_probability=nan", 400),
        ("/pictures/0/search?min_probability=0.5", 400),
        ("/pictures/0/search?min_probability=2", 400),
        ("/pictures/0/search?hide_duplicates=1", 400),
        ("/pictures/0/search?which=other", 400),
        ("/pictures/0/search?text=" + "a" * 201, 400),
        ("/pictures/0/thumbnail?size=100", 400),
        ("/pictures/0/thumbnail?size=100000000", 400),
        ("/pictures?limit=501", 400),
        ("/pictures?offset=-1", 400),
        ("/pictures/-1", 404),
        ("/pictures/" + "9" * 18, 404),
        ("/pictures/" + "9" * 6000, 404),
        ("/pictures/1.0", 404),
        ("/pictures/0x1", 404),
        ("/pictures/%D9%A3", 404),
        ("/compare/77777", 404),
    ],
)
def test_wrong_parameters_are_named(client: Client, path: str, status: int) -> None:
    answer = client.get(API + path)
    assert answer.status_code == status
    message(answer)


def test_methods(client: Client) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "POST"):
        answer = client.request(method, f"{API}/pictures/0")
        assert answer.status_code == 405
        message(answer)
    assert client.get(f"{API}/search").status_code == 405
    assert client.request("HEAD", f"{API}/info").status_code == 200


def test_bodies_that_are_no_pictures(client: Client) -> None:
    for kind in ("", "text/plain", "multipart/form-data; boundary=x", "application/json"):
        answer = client.post(
            f"{API}/search", content=picture_bytes(), headers={"content-type": kind}
        )
        assert answer.status_code == 415
        assert "Content-Type" in message(answer)
    for body, words in [
        (b"", "empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
        (b"%PDF-1.4", "not a picture"),
        (picture_bytes()[:200], "damaged"),
        (kinds.bomb(60_000), "pixels"),
    ]:
        answer = upload(client, body)
        assert answer.status_code == 422
        assert words in message(answer)
    assert upload(client, picture_bytes()).status_code == 200


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_mutated_pictures_are_answered(client: Client, kind: str) -> None:
    chance = np.random.default_rng(0)
    content = picture_bytes(kind=kind)
    for _ in range(25):
        damaged = bytearray(content)
        for place in chance.integers(0, len(damaged), 4):
            damaged[place] = int(chance.integers(256))
        assert upload(
            client, bytes(damaged[: int(chance.integers(1, len(damaged)))])
        ).status_code in (
            200,
            422,
        )
    assert client.get("/health").status_code == 200


def test_cached_thumbnails_are_bounded() -> None:
    cache = ByteCache(1000)
    for number in range(100):
        assert cache.get(number, lambda number=number: bytes([number]) * 90) == bytes([number]) * 90
        assert cache.size <= 1000
    assert cache.size == 11 * 90
    assert cache.get(99, lambda: b"never asked") == bytes([99]) * 90
    assert cache.get("large", lambda: b"x" * 2000) == b"x" * 2000
    assert cache.size <= 1000


# What it says about itself


def test_the_description_names_every_route_and_no_other() -> None:
    described = {
        (path, method) for path, methods in openapi()["paths"].items() for method in methods
    }
    assert described == {(PREFIX + route.path, route.method.lower()) for route in ROUTES}
    identifiers = [
        operation["operationId"]
        for methods in openapi()["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(identifiers)) == len(identifiers)


def test_the_description_is_served(client: Client) -> None:
    assert client.get(f"{API}/openapi.json").json() == json.loads(json.dumps(openapi()))
    names = {name for name in vars(Endpoints) if not name.startswith("_")}
    assert names - {"gallery", "placed"} <= {
        getattr(route.answer, "__name__", "") for route in ROUTES
    }


def check(schema: dict[str, Any], value: Any, schemas: dict[str, Any]) -> None:
    """Fails where a value is not what its schema says."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    kinds_of = schema.get("type", [])
    kinds_of = kinds_of if isinstance(kinds_of, list) else [kinds_of]
    python: dict[str, Callable[[Any], bool]] = {
        "integer": lambda v: type(v) is int,
        "number": lambda v: type(v) in (int, float),
        "string": lambda v: isinstance(v, str),
        "boolean": lambda v: isinstance(v, bool),
        "null": lambda v: v is None,
        "array": lambda v: isinstance(v, list),
        "object": lambda v: isinstance(v, dict),
    }
    assert not kinds_of or any(python[kind](value) for kind in kinds_of), (schema, value)
    if isinstance(value, list):
        for item in value:
            check(schema["items"], item, schemas)
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) == set(schema["properties"])
        for name, item in value.items():
            check(schema["properties"][name], item, schemas)


def likely(parameter: Parameter) -> st.SearchStrategy[str]:
    """Values as the description allows them, and others."""
    if parameter.choices:
        good = st.sampled_from([str(choice) for choice in parameter.choices])
    elif parameter.kind == "integer":
        good = st.integers(int(parameter.least), int(min(parameter.most, 1000))).map(str)
    elif parameter.kind == "number":
        good = st.floats(0, 1).map(lambda value: f"{value:.4f}")
    elif parameter.kind == "boolean":
        good = st.sampled_from(["true", "false"])
    else:
        good = st.sampled_from(["", "class 1", "png", "Class"])
    return st.one_of(good, good, good, st.text(max_size=300))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Route, str, dict[str, str], bytes]:
    route = draw(st.sampled_from(ROUTES))
    wanted = draw(st.lists(st.sampled_from(route.parameters), unique=True))
    values = {parameter.name: draw(likely(parameter)) for parameter in wanted}
    if draw(st.integers(0, 9)) == 0:
        values[draw(st.text(min_size=1, max_size=20))] = draw(st.text(max_size=20))
    number = draw(st.one_of(st.integers(0, 40).map(str), st.text(max_size=30)))
    body = draw(st.one_of(st.just(picture_bytes()), st.binary(max_size=300)))
    return route, number, values, body


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(request=requests())
def test_any_request_gets_what_the_description_says(
    client: Client, request: tuple[Route, str, dict[str, str], bytes]
) -> None:
    route, number, values, body = request
    path = PREFIX + route.path.replace("{id}", quote(number, safe="", errors="replace"))
    options: dict[str, Any] = {
        "params": {k: v.encode("utf-8", "replace").decode() for k, v in values.items()}
    }
    if route.body:
        options |= {"content": body, "headers": {"content-type": "image/png"}}
    answer = client.request(route.method, path, **options)
    described = openapi()
    operation = described["paths"][PREFIX + route.path][route.method.lower()]
    if "{id}" in route.path and ("/" in number or number in ("", ".", "..")):
        assert answer.status_code < 500  # another address, or none
        return
    responses = operation["responses"]
    assert str(answer.status_code) in responses, answer.text
    content = responses[str(answer.status_code)]["content"]
    kind = answer.headers["content-type"]
    assert kind in content
    if "schema" in content[kind]:
        check(content[kind]["schema"], answer.json(), described["components"]["schemas"])
