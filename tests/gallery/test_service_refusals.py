"""What the service refuses: paths, addresses, hosts, parameters and bodies."""

import json

import httpx
import numpy as np
import pytest

from cbml.gallery import Gallery
from cbml.gallery.middleware import HEADERS, allowed_hosts
from cbml.gallery.service import make_app
from cbml.gallery.thumbnails import ByteCache
from tests.data import kinds
from tests.gallery import hostile
from tests.gallery.asgi import Client
from tests.gallery.requests import API, image_bytes, message, upload


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
        client.get(f"{API}/images/0/search", params={"text": address}),
        client.get(f"{API}/images/{httpx.QueryParams({'a': address})}"),
        client.post(f"{API}/search", content=json.dumps({"url": address}).encode()),
    ]:
        assert answer.status_code in (200, 400, 404, 415, 422)
        if answer.status_code == 200:
            assert answer.json()["results"] == []


@pytest.mark.parametrize("host", hostile.HOSTS)
def test_foreign_hosts_are_refused(client: Client, host: str) -> None:
    answer = client.get("/health", headers={"host": host})
    assert answer.status_code == 421
    assert "images" not in answer.text


def test_own_names_are_not(client: Client, gallery: Gallery) -> None:
    for host in ("localhost", "LocalHost:8000", "127.0.0.1:1", "[::1]:8000", "[::1]"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    hosts = allowed_hosts("0.0.0.0", ["images.example.org"])
    with Client(make_app(gallery, hosts=hosts)) as open_to_all:
        for host, status in [
            ("10.1.2.3:8000", 200),
            ("[fe80::1]", 200),
            ("Images.Example.org", 200),
            ("evil.example", 421),
        ]:
            assert open_to_all.get("/health", headers={"host": host}).status_code == status


def test_other_sites_are_refused(client: Client) -> None:
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        assert client.get(f"{API}/images/0/thumbnail", headers=headers).status_code == 403
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
        client.get(f"{API}/images/0/thumbnail"),
        client.request("DELETE", f"{API}/info"),
    ]:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "default-src 'self'" in HEADERS["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/images/0/search?k=0", 400),
        ("/images/0/search?k=501", 400),
        ("/images/0/search?k=1e3", 400),
        ("/images/0/search?k=-1", 400),
        ("/images/0/search?k=%D9%A3", 400),
        ("/images/0/search?k=99999999999999999999999", 400),
        ("/images/0/search?k=5&k=6", 400),
        ("/images/0/search?K=5", 400),
        ("/images/0/search?min_probability=nan", 400),
        ("/images/0/search?min_probability=0.5", 400),
        ("/images/0/search?min_probability=2", 400),
        ("/images/0/search?hide_duplicates=1", 400),
        ("/images/0/search?which=other", 400),
        ("/images/0/search?text=" + "a" * 201, 400),
        ("/images/0/thumbnail?size=100", 400),
        ("/images/0/thumbnail?size=100000000", 400),
        ("/images?limit=501", 400),
        ("/images?offset=-1", 400),
        ("/images/-1", 404),
        ("/images/" + "9" * 18, 404),
        ("/images/" + "9" * 6000, 404),
        ("/images/1.0", 404),
        ("/images/0x1", 404),
        ("/images/%D9%A3", 404),
        ("/compare/77777", 404),
    ],
)
def test_wrong_parameters_are_named(client: Client, path: str, status: int) -> None:
    answer = client.get(API + path)
    assert answer.status_code == status
    message(answer)


def test_methods(client: Client) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "POST"):
        answer = client.request(method, f"{API}/images/0")
        assert answer.status_code == 405
        message(answer)
    assert client.get(f"{API}/search").status_code == 405
    assert client.request("HEAD", f"{API}/info").status_code == 200


def test_bodies_that_are_no_images(client: Client) -> None:
    for kind in ("", "text/plain", "multipart/form-data; boundary=x", "application/json"):
        answer = client.post(f"{API}/search", content=image_bytes(), headers={"content-type": kind})
        assert answer.status_code == 415
        assert "Content-Type" in message(answer)
    for body, words in [
        (b"", "empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (b"%PDF-1.4", "not an image"),
        (image_bytes()[:200], "damaged"),
        (kinds.bomb(60_000), "pixels"),
    ]:
        answer = upload(client, body)
        assert answer.status_code == 422
        assert words in message(answer)
    assert upload(client, image_bytes()).status_code == 200


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_mutated_images_are_answered(client: Client, kind: str) -> None:
    chance = np.random.default_rng(0)
    content = image_bytes(kind=kind)
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
