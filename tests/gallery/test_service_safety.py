"""Tokens, origins, updates while serving, replaced files, uploads that must not starve searches."""

import asyncio
import concurrent.futures
import contextlib
import io
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from cbml.errors import BadData, DamagedFile, FolderInUse
from cbml.files import locked
from cbml.gallery import Gallery, SearchOptions, remove_images, write_near_duplicates
from cbml.gallery import gallery as gallery_module
from cbml.gallery import service as service_module
from cbml.gallery.decoding import DecodingFailed, ImageDecoder
from cbml.gallery.middleware import is_loopback
from cbml.gallery.service import make_app
from tests.gallery import small
from tests.gallery.asgi import Client
from tests.gallery.requests import API, image_bytes, message, upload

TOKEN = "a token of this test"


def test_a_token_is_asked_for(gallery: Gallery) -> None:
    with Client(make_app(gallery, hosts={"localhost"}, token=TOKEN)) as client:
        for path in (f"{API}/info", f"{API}/images/0/thumbnail", "/metrics", "/nothing"):
            answer = client.get(path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            message(answer)
        for given in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN):
            headers = {"authorization": given}
            assert client.get(f"{API}/info", headers=headers).status_code == 401
        good = {"authorization": f"Bearer {TOKEN}"}
        assert client.get(f"{API}/info", headers=good).status_code == 200
        assert client.get("/").status_code == 200
        assert client.get("/app.js").status_code == 200
        assert client.get("/health").json() == {"status": "ok"}, "no numbers for strangers"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("https://localhost", 200),
        ("http://localhost:81", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("file://", 403),
    ],
)
def test_origins_are_checked(client: Client, origin: str, status: int) -> None:
    assert client.get(f"{API}/info", headers={"origin": origin}).status_code == status


def test_which_addresses_only_this_machine_reaches() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_a_gallery_brought_up_to_date_is_picked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "LOOK_EVERY", -1.0)
    files, target = small.images(tmp_path / "p"), tmp_path / "g"
    small.built(files, target)
    with Client(make_app(Gallery(target), hosts={"localhost"})) as client:
        before = client.get(f"{API}/info").json()["images"]
        small.save(files / "class 1" / "new.png", 777)
        small.built(files, target)
        assert client.get(f"{API}/info").json()["images"] == before + 1
        assert client.get(f"{API}/images/{before}/search?k=3").status_code == 200
        (target / "manifest.json").write_text("{}")  # damaged: the last good one is served
        assert client.get(f"{API}/info").json()["images"] == before + 1


def test_a_replaced_file_is_not_shown_under_the_old_name(tmp_path: Path) -> None:
    files, target = small.images(tmp_path / "p"), tmp_path / "g"
    small.built(files, target)
    with Gallery(target) as opened, Client(make_app(opened, hosts={"localhost"})) as client:
        first = opened.images[3]
        assert client.get(f"{API}/images/{first.id}/image").status_code == 200
        small.save(Path(first.path), 4711)
        answer = client.get(f"{API}/images/{first.id}/thumbnail?size=96")
        assert answer.status_code == 404
        assert "has changed since it was indexed" in message(answer)
        Path(opened.images[4].path).touch()  # another time, the same content
        assert client.get(f"{API}/images/{opened.images[4].id}/thumbnail").status_code == 200


def test_confusions_and_differences(client: Client, gallery: Gallery, lone: Client) -> None:
    found = client.get(f"{API}/confusions?limit=500").json()
    expected: dict[tuple[str, str], int] = {}
    for image in gallery.images:
        if image.label is None:
            continue
        nearest = gallery.search(gallery.image_query(image.id)).results[0]
        if nearest.label not in (None, image.label):
            pair = image.label, str(nearest.label)
            expected[pair] = expected.get(pair, 0) + 1
    pairs = {(one["label"], one["taken_for"]): one["count"] for one in found["confusions"]}
    assert pairs == expected
    assert found["errors"] == sum(expected.values())
    for one in found["confusions"]:
        assert 0 < len(one["examples"]) <= one["count"]
        for example in one["examples"]:
            number = example["query"]["id"]
            nearest = client.get(f"{API}/images/{number}/search?k=1").json()["results"][0]
            assert example["nearest"]["id"] == nearest["id"]
            assert (example["query"]["label"], example["nearest"]["label"]) == (
                one["label"],
                one["taken_for"],
            )
    counts = [one["count"] for one in found["confusions"]]
    assert counts == sorted(counts, reverse=True)
    images = client.get(f"{API}/differences").json()["images"]
    gains = [abs(one["average_precision"] - one["other_average_precision"]) for one in images]
    assert gains == sorted(gains, reverse=True)
    assert gains
    assert lone.get(f"{API}/differences").status_code == 404


def test_labels_match_in_any_case(client: Client) -> None:
    answer = client.get(f"{API}/images", params={"label": "CLASS 1"}).json()
    assert answer["total"] == small.EACH


def large_png(side: int = 8000) -> bytes:
    output = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(output, format="PNG", compress_level=1)
    return output.getvalue()


def test_a_decoder_that_takes_too_long_is_ended_and_replaced() -> None:
    preprocessing = [small.model().describe()["preprocessing"]]
    decoder = ImageDecoder(processes=1, seconds=60)
    try:
        decoder.warm_up()
        small_png = io.BytesIO()
        small.draw(1).save(small_png, format="PNG")
        first = decoder.decode(small_png.getvalue(), preprocessing)
        decoder.seconds = 0.05
        with pytest.raises(DecodingFailed, match="longer than") as failure:
            decoder.decode(large_png(), preprocessing)
        assert failure.value.status == 408
        decoder.seconds = 60
        again = decoder.decode(small_png.getvalue(), preprocessing)
        assert np.array_equal(first.framed[0], again.framed[0])
        with pytest.raises(DecodingFailed, match="not an image"):
            decoder.decode(b"<html>", preprocessing)
    finally:
        decoder.close()


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere"], ids=["ends", "is missing"])
def test_a_decoder_that_cannot_be_started_is_not_the_fault_of_the_image(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    preprocessing = [small.model().describe()["preprocessing"]]
    decoder = ImageDecoder(processes=1)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", program)
            decoder.warm_up()
            with pytest.raises(DecodingFailed, match="try again") as failure:
                decoder.decode(image_bytes(), preprocessing)
        assert failure.value.status == 503
        assert decoder.decode(image_bytes(), preprocessing).framed
    finally:
        decoder.close()


@pytest.fixture(scope="module")
def served(gallery_folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """One process for all tests of connections; each closes those that it opens."""
    with small.server(gallery_folder) as running:
        yield running


def test_large_uploads_do_not_starve_searches(served: tuple[object, int]) -> None:
    body = large_png()
    base = f"http://127.0.0.1:{served[1]}{API}"
    headers = {"content-type": "image/png"}

    def send(_: int) -> int:
        with httpx.Client(timeout=120, trust_env=False) as client:
            return client.post(f"{base}/search?k=3", content=body, headers=headers).status_code

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        sent = [pool.submit(send, number) for number in range(12)]
        time.sleep(0.3)
        slowest = 0.0
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not all(one.done() for one in sent):
                start = time.monotonic()
                assert client.get(f"{base}/images/1/search?k=5").status_code == 200
                slowest = max(slowest, time.monotonic() - start)
                time.sleep(0.1)
        codes = [one.result() for one in sent]  # a reset would raise here
    assert set(codes) <= {200, 429}
    assert codes.count(200) >= 8
    assert slowest < 1.0, f"an ordinary search took {slowest:.1f} s"


def ask(connection: socket.socket) -> bytes:
    """The whole answer: its head and its body may come apart."""
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = connection.recv(65536)
    while not answer.endswith(b"}"):
        more = connection.recv(65536)
        assert more, f"the connection was closed after {answer!r}"
        answer += more
    return answer


@pytest.mark.parametrize("asked", [False, True], ids=["never asked", "asked once"])
def test_idle_connections_do_not_take_the_service_away(
    served: tuple[subprocess.Popen[str], int], asked: bool
) -> None:
    process, port = served
    with contextlib.ExitStack() as opened:
        server = psutil.Process(process.pid)
        for _ in range(300):
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            opened.enter_context(connection)
            if asked:
                assert ask(connection).startswith(b"HTTP/1.1 200")
        with httpx.Client(timeout=60, trust_env=False) as client:
            for _ in range(5):
                assert client.get(f"http://127.0.0.1:{port}/health").status_code == 200
        open_ones = [one for one in server.net_connections("tcp") if one.status == "ESTABLISHED"]
        assert len(open_ones) <= service_module.SILENT + 5


def test_a_connection_outlives_the_patience_of_clients(served: tuple[object, int]) -> None:
    """A server that closes first can cut off a request that is on its way."""
    with socket.create_connection(("127.0.0.1", served[1]), timeout=60) as connection:
        assert ask(connection).startswith(b"HTTP/1.1 200")
        time.sleep(5.5)  # many clients close after 5
        assert ask(connection).startswith(b"HTTP/1.1 200")
        assert connection.recv(1) == b"", "but it is not kept for ever"


INDEX = """
import sys
from pathlib import Path
from cbml.errors import FolderInUse
from cbml.gallery import builder
from tests.gallery import small
write = builder.write_state
def slow(*arguments):
    print("vectors saved", flush=True)
    sys.stdin.readline()
    write(*arguments)
small.model()
for line in iter(sys.stdin.readline, ""):
    how, files, target = line.strip().split(":")
    builder.write_state = slow if how == "slow" else write
    try:
        small.built(Path(files), Path(target))
        print("built", flush=True)
    except FolderInUse as refusal:
        print(f"refused: {refusal}", flush=True)
"""


class Builder:
    """A process that does nothing but build galleries: once two have started, they collide."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        child = subprocess.Popen(
            [sys.executable, "-c", INDEX],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent.parent,
        )
        self.child = stack.enter_context(child)

    def tell(self, *words: object) -> None:
        print(*words, sep=":", file=self.child.stdin, flush=True)

    def hear(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline()


@pytest.fixture(scope="module")
def builders() -> Iterator[tuple[Builder, Builder]]:
    with contextlib.ExitStack() as stack:
        yield Builder(stack), Builder(stack)


def two_sets(folder: Path) -> tuple[Path, Path]:
    """The usual images, and some of them: what the two builders write can be told apart."""
    few = folder / "few"
    for number in range(3):
        small.save(few / "class 0" / f"{number}.png", number)
    return small.images(folder / "many"), few


def images_in(target: Path) -> int:
    with Gallery(target) as opened:
        assert set(opened.store.ids()) == set(opened.ids), "each image has its vector"
        return len(opened)


MANY = small.CLASSES * small.EACH + 1


@pytest.mark.parametrize("pairs", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_two_builds_at_once_lose_nothing(
    builders: tuple[Builder, Builder], tmp_path: Path, pairs: int
) -> None:
    sets, chance = two_sets(tmp_path), random.Random(0)
    for number in range(pairs):
        target = tmp_path / f"g{number}"
        for builder, files in zip(builders, sets, strict=True):
            builder.tell("usual", files, target)
            time.sleep(chance.choice([0.0, chance.uniform(0.0, 0.6)]))
        said = [builder.hear() for builder in builders]
        assert all(line == "built\n" or "refused: " in line for line in said), said
        assert "built\n" in said
        assert images_in(target) in (MANY, 3)


def test_a_second_build_does_not_come_between_vectors_and_list(
    builders: tuple[Builder, Builder], tmp_path: Path
) -> None:
    """At this moment a gallery is lost where nothing keeps a second writer away."""
    (many, few), target = two_sets(tmp_path), tmp_path / "g"
    first, second = builders
    first.tell("slow", many, target)
    assert first.hear() == "vectors saved\n"
    second.tell("usual", few, target)
    assert "another process is writing here" in second.hear()
    first.tell("go on")
    assert first.hear() == "built\n"
    assert images_in(target) == MANY
    second.tell("usual", few, target)
    assert second.hear() == "built\n"
    assert images_in(target) == 3


def test_a_second_build_is_refused(tmp_path: Path) -> None:
    files = small.images(tmp_path / "p")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "g"):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        with pytest.raises(FolderInUse, match="another process is writing here"):
            small.built(files, tmp_path / "g")
    finally:
        done.set()
        thread.join()


def open_beside_a_writer(tmp_path: Path, times: int) -> None:
    files, target = small.images(tmp_path / "p"), tmp_path / "g"
    small.built(files, target)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            small.save(files / "class 1" / "new.png", 1000 + number)
            small.built(files, target)

    writer = threading.Thread(target=write)
    writer.start()
    seen: set[int] = set()
    try:
        while times > 0 or len(seen) < 3:  # a busy machine may not let the writer have its turn
            times -= 1
            with Gallery(target) as opened:
                assert len(opened.store) == len(opened)
                seen.add(opened.state.generation)
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("times", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_gallery_is_opened_beside_a_writer(tmp_path: Path, times: int) -> None:
    open_beside_a_writer(tmp_path, times)


def test_images_are_removed_by_name(tmp_path: Path) -> None:
    files, target = small.images(tmp_path / "p"), tmp_path / "g"
    small.built(files, target)
    done = remove_images(target, ["class 1/0.png", "alone.png"])
    assert (done.removed, done.images) == (2, small.CLASSES * small.EACH - 1)
    with Gallery(target) as opened:
        assert "class 1/0.png" not in {image.name for image in opened.images}
    with pytest.raises(BadData, match="; search results show names"):
        remove_images(target, ["nowhere.png"])
    with pytest.raises(BadData, match="no such gallery"):
        remove_images(tmp_path / "none", ["alone.png"])
    assert not (tmp_path / "none").exists()


def test_near_duplicates_as_a_table(tmp_path: Path) -> None:
    files, target = small.images(tmp_path / "p"), tmp_path / "g"
    small.draw(201, (120, 90)).save(files / "class 3" / "copy.png")
    small.built(files, target)
    assert write_near_duplicates(tmp_path / "t.csv", target) == 1
    rows = (tmp_path / "t.csv").read_text().splitlines()
    assert len(rows) == 3
    assert {row.split(",")[2] for row in rows[1:]} == {"class 2/1.png", "class 3/copy.png"}
    assert [row.split(",")[-1] for row in rows] == ["same_content", "0", "0"]
    shutil.copy(files / "class 2" / "1.png", files / "class 3" / "same.png")
    small.built(files, target)
    assert write_near_duplicates(tmp_path / "t.csv", target) == 1
    rows = (tmp_path / "t.csv").read_text().splitlines()
    same = {row.split(",")[2]: row.split(",")[-1] for row in rows[1:]}
    assert same == {"class 2/1.png": "1", "class 3/copy.png": "0", "class 3/same.png": "1"}


def test_what_is_no_gallery_is_told_apart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small.model().save(run / "model")
    (run / "run.json").write_text("{}")
    for folder in (run, run / "model"):
        with pytest.raises(BadData, match=r"not a gallery; make a gallery with it:  cbml index"):
            Gallery(folder)
    old = tmp_path / "old"
    old.mkdir()
    (old / "manifest.json").write_text('{"kind": "cbml gallery 1"}')
    with pytest.raises(DamagedFile, match=r"earlier version; delete the folder and make it again"):
        Gallery(old)


def test_uploads_beyond_their_number_hear_of_it(gallery: Gallery) -> None:
    from cbml.gallery.middleware import Uploads

    full = Uploads(at_once=1)
    with Client(make_app(gallery, hosts={"localhost"}, uploads=full)) as client:
        full.taken = 1
        answer = upload(client, large_png(100))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        full.taken = 0
        assert upload(client, large_png(100)).status_code == 200


def test_uploads_that_wait_together_are_embedded_together(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    usual = Gallery.framed_queries
    release = threading.Event()

    def slow(self: Gallery, framed: Any, signatures: Any) -> Any:
        sizes.append(len(framed))
        assert release.wait(60)  # until all others have been decoded
        return usual(self, framed, signatures)

    monkeypatch.setattr(Gallery, "framed_queries", slow)
    service, app = service_module.make_service(gallery, hosts={"localhost"})
    bodies = [image_bytes(300 + number) for number in range(6)]

    async def ask_all() -> list[dict[str, Any]]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"content-type": "image/png"}

            async def ask(body: bytes) -> dict[str, Any]:
                answer = await client.post(f"{API}/search?k=4", content=body, headers=headers)
                found: dict[str, Any] = answer.json()
                return found

            asked = [asyncio.create_task(ask(body)) for body in bodies]
            while sum(sizes) + sum(map(len, service._waiting.values())) < len(bodies):
                await asyncio.sleep(0.01)
            release.set()
            return list(await asyncio.gather(*asked))

    try:
        answers = asyncio.run(ask_all())
    finally:
        service.close()
    assert sizes == [1, 5]  # the first alone, then all that had come meanwhile
    monkeypatch.undo()
    for body, answer in zip(bodies, answers, strict=True):
        expected = gallery.search(gallery.query(body), SearchOptions(k=4)).results
        assert [one["id"] for one in answer["results"]] == [one.id for one in expected]
        gaps = [
            one["similarity"] - other.similarity
            for one, other in zip(answer["results"], expected, strict=True)
        ]
        assert np.abs(gaps).max() < 1e-5


def test_an_error_of_the_model_is_told_to_all_that_wait(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Gallery, "framed_queries", broken)
    app = make_app(gallery, hosts={"localhost"})
    with Client(app) as client:
        client.headers["host"] = "localhost"
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no memory"):  # after the answer was sent
                upload(client, image_bytes())
        assert client.get(f"{API}/images/1/search").status_code == 200


def test_only_as_deep_as_needed(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain search with an upload looks at few images, and finds what a deep one finds."""
    monkeypatch.setattr(gallery_module, "PROBABLE", 4)
    depths: list[int] = []
    usual = gallery.store.search

    def counted(queries: Any, k: int) -> Any:
        depths.append(k)
        return usual(queries, k)

    monkeypatch.setattr(gallery.store, "search", counted)
    query = gallery.query(image_bytes(77))
    for options in (SearchOptions(k=2), SearchOptions(k=3, hide_duplicates=True)):
        shallow = gallery.search(query, options)
        assert depths.pop() == 4 * options.k < len(gallery)
        assert gallery.respond(query, options, gallery.ranking(query)) == shallow
        assert depths.pop() == len(gallery)
    gallery.search(query, SearchOptions(k=2, label="class 1"))
    gallery.search(gallery.image_query(3), SearchOptions(k=2))
    assert depths == [len(gallery)] * 2
