"""A real server process: limits of bodies and time, load, memory, its end."""

import asyncio
import concurrent.futures
import io
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from cbml.gallery import Gallery, SearchOptions
from cbml.gallery.middleware import BODY_LIMIT, READ_SECONDS
from tests.gallery import hostile, small

API = "/api/v1"


@pytest.fixture(scope="module")
def served(gallery_folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with small.server(gallery_folder) as running:
        yield running


@pytest.fixture(scope="module")
def port(served: tuple[subprocess.Popen[str], int]) -> int:
    return served[1]


def get(port: int, path: str, **options: object) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=60, trust_env=False, **options)  # type: ignore[arg-type]


def image_bytes(seed: int) -> bytes:
    output = io.BytesIO()
    small.draw(seed).save(output, format="PNG")
    return output.getvalue()


def spoken(port: int, *pieces: bytes, wait: float = 0.0, patience: float = 60.0) -> bytes:
    """What the server says to bytes that are sent as they are, until it closes or falls silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                break
            time.sleep(wait)
        said = b""
        while b"\r\n\r\n" not in said:
            try:
                piece = connection.recv(65536)
            except OSError:
                break
            if not piece:
                break
            said += piece
        return said


def head(port: int, *lines: str, path: str = f"{API}/search") -> bytes:
    standing = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: image/png"]
    return "\r\n".join([*standing, *lines, "", ""]).encode()


def status(said: bytes) -> int:
    return int(said.split(b" ")[1]) if said.startswith(b"HTTP/1.1 ") else 0


def test_a_body_that_announces_too_much_is_not_read(port: int) -> None:
    assert status(spoken(port, head(port, f"Content-Length: {BODY_LIMIT + 1}"))) == 413
    assert get(port, "/health").status_code == 200


def test_a_chunked_body_is_stopped_at_the_limit(port: int) -> None:
    piece = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    pieces = [piece] * (BODY_LIMIT // 0x100000 + 4)
    assert status(spoken(port, head(port, "Transfer-Encoding: chunked"), *pieces)) == 413
    assert get(port, "/health").status_code == 200


def test_a_chunked_image_is_welcome(port: int) -> None:
    body = image_bytes(3)
    pieces = [b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:100], body[100:])]
    said = spoken(port, head(port, "Transfer-Encoding: chunked"), *pieces, b"0\r\n\r\n")
    assert status(said) == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /%ZZ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / and more HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"POST /api/v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nxx\r\n",
    ],
    ids=range(10),
)
def test_broken_requests_are_turned_away(port: int, request_bytes: bytes) -> None:
    assert status(spoken(port, request_bytes, patience=20)) in (0, *range(400, 500))
    assert get(port, "/health").status_code == 200


@pytest.mark.parametrize("path", hostile.TRAVERSALS[::5])
def test_no_escape_over_the_wire(port: int, path: str) -> None:
    line = b"GET " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    said = spoken(port, line)
    assert status(said) in (0, 400, 404)
    assert b"root:" not in said


def test_slow_and_silent_clients_hold_nobody_up(port: int) -> None:
    """Bodies and heads that never end: closed after a while, and others are served meanwhile."""
    slow = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(24)]
    for number, connection in enumerate(slow):
        if number % 3 == 0:
            connection.sendall(head(port, "Content-Length: 1000") + b"x")
        elif number % 3 == 1:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: local")
    answers = [get(port, "/health"), get(port, f"{API}/images/0/search?k=3")]
    assert [answer.status_code for answer in answers] == [200, 200]
    deadline = time.monotonic() + READ_SECONDS + 50
    said = []
    for connection in slow:
        connection.settimeout(max(1.0, deadline - time.monotonic()))
        with connection:
            said.append(connection.recv(65536))  # a time-out here is a failure
    assert [status(one) for one in said[::3]] == [408] * 8
    assert {status(one) for number, one in enumerate(said) if number % 3} <= {0, 400, 408}
    assert get(port, "/health").status_code == 200


def mixed(number: int, count: int) -> tuple[str, str, bytes]:
    """Method, path and body of the n-th request of the load."""
    image, kind = number % count, number % 10
    if kind < 3:
        return "GET", f"{API}/images/{image}/search?k={1 + number % 20}", b""
    if kind < 5:
        return "POST", f"{API}/search?k=5&hide_duplicates=true", image_bytes(number % 40)
    if kind < 8:
        return "GET", f"{API}/images/{image}/thumbnail?size=96", b""
    if kind == 8:
        paths = ("info", "labels", "worst?limit=20", "map", "images?text=png", "scores")
        return "GET", f"{API}/{paths[number // 10 % len(paths)]}", b""
    wrong = ("/images/77777", "/images/0/search?k=0", "/nothing", "/compare/1?k=4")
    return "GET", f"{API}{wrong[number // 10 % len(wrong)]}", b""


async def load(port: int, total: int, count: int) -> dict[int, tuple[int, bytes]]:
    answers: dict[int, tuple[int, bytes]] = {}
    waiting = iter(range(total))
    limits = httpx.Limits(max_connections=16)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=120, trust_env=False
    ) as client:

        async def work() -> None:
            for number in waiting:
                method, path, body = mixed(number, count)
                headers = {"content-type": "image/png"} if body else {}
                answer = await client.request(method, path, content=body, headers=headers)
                answers[number] = answer.status_code, answer.content

        await asyncio.gather(*(work() for _ in range(16)))
    return answers


def stopped(process: subprocess.Popen[str], number: int) -> int:
    """The exit code after a signal."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors
    return process.returncode


def assert_same(found: object, wanted: object, slack: float) -> None:
    """Uploads that are embedded together with others round otherwise than alone."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict)
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_same(found[key], value, slack)
    elif isinstance(wanted, list):
        assert isinstance(found, list)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other, slack)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=0, abs=slack)
    else:
        assert found == wanted


def hold(gallery: Gallery, process: subprocess.Popen[str], port: int, total: int) -> None:
    server = psutil.Process(process.pid)
    asyncio.run(load(port, 200, len(gallery)))
    before = server.memory_info().rss
    answers = asyncio.run(load(port, total, len(gallery)))
    growth = server.memory_info().rss - before
    for number, (code, content) in answers.items():
        method, path, body = mixed(number, len(gallery))
        expected = {"/images/77777": 404, "/images/0/search?k=0": 400, "/nothing": 404}
        wanted = expected.get(path.removeprefix(API), 404 if "/compare/" in path else 200)
        assert code == wanted, (method, path, content[:200])
        if "/search" in path and code == 200:
            query, options = (
                gallery.query(body) if body else None,
                SearchOptions(k=5, hide_duplicates=True),
            )
            if query is None:
                query = gallery.image_query(int(gallery.ids[number % len(gallery)]))
                options = SearchOptions(k=1 + number % 20)
            answer = json.loads(content)
            del answer["took_ms"]
            library = json.loads(json.dumps(gallery.search(query, options).as_dict()))
            assert_same(answer, library, slack=1e-5 if body else 0.0)
    assert growth < 48 * 2**20, f"{growth >> 20} MiB more after {total} requests"


def test_the_service_holds(gallery: Gallery, served: tuple[subprocess.Popen[str], int]) -> None:
    hold(gallery, *served, 200)


@pytest.mark.slow
def test_the_service_holds_for_long(
    gallery: Gallery, served: tuple[subprocess.Popen[str], int]
) -> None:
    hold(gallery, *served, 2000)


def test_too_many_at_once_are_told_to_wait(port: int) -> None:
    """More requests than are taken on at a time: answered or sent away, never an error of ours."""

    def ask(number: int) -> int:
        return get(port, f"{API}/images/{number % 30}/search?k=100").status_code

    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        codes = set(pool.map(ask, range(200)))
    assert codes <= {200, 429}
    assert 200 in codes


def test_a_taken_port_is_said_so(gallery_folder: Path, port: int) -> None:
    from cbml.errors import BadData
    from cbml.gallery.service import listen

    with pytest.raises(BadData, match=f"cannot listen on 127.0.0.1 port {port}.*--port"):
        listen("127.0.0.1", port)
    with listen("127.0.0.1", 0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_only_this_machine_can_reach_it(port: int) -> None:
    listening = [
        connection.laddr
        for connection in psutil.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}


@pytest.mark.slow
def test_an_interrupt_from_the_keyboard_stops_it(gallery_folder: Path) -> None:
    with small.server(gallery_folder) as (process, port):
        assert get(port, "/health").status_code == 200
        assert stopped(process, signal.SIGINT) == 130


def test_where_no_browser_opens_a_line_says_so(gallery_folder: Path, tmp_path: Path) -> None:
    nothing = ["env", "-u", "DISPLAY", "-u", "WAYLAND_DISPLAY", "-u", "BROWSER", f"PATH={tmp_path}"]
    with small.server(gallery_folder, "--open", before=nothing) as (process, _):
        assert process.stderr is not None
        assert process.stderr.readline() == "  no browser opened here: open the address yourself\n"


def test_it_stops_in_order(served: tuple[subprocess.Popen[str], int]) -> None:
    """The last of this file: the server is gone afterwards."""
    process, port = served
    assert stopped(process, signal.SIGTERM) == 143
    with pytest.raises(httpx.ConnectError):
        get(port, "/health")


def test_a_service_that_may_open_few_files_answers(gallery_folder: Path) -> None:
    """Idle connections leave it some, or it would accept nobody and say so without end."""
    few = ["sh", "-c", 'ulimit -n 60 && exec "$@"', "sh"]
    with small.server(gallery_folder, before=few) as (process, port):
        address = ("127.0.0.1", port)
        idle = [socket.create_connection(address, timeout=60) for _ in range(60)]
        try:
            with httpx.Client(timeout=60, trust_env=False) as client:
                base, headers = f"http://127.0.0.1:{port}", {"content-type": "image/png"}
                assert client.get(f"{base}/health").status_code == 200
                search = f"{base}{API}/search?k=3"
                found = client.post(search, content=image_bytes(5), headers=headers)
                assert found.status_code == 200
            process.terminate()
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            for one in idle:
                one.close()
