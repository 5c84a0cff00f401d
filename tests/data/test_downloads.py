"""Fetching over real HTTP: resumed, checked, and refused in one line."""

import hashlib
import http.server
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cbml.data.datasets import DATASETS
from cbml.data.downloads import Download, download, get
from cbml.errors import BadData

CONTENT = os.urandom(300_000)
GOOD = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(http.server.BaseHTTPRequestHandler):
    """A server with the faults of real ones."""

    ranges = True
    cut = 0  # bytes after which a transfer breaks off
    requests: list[str | None] = []  # noqa: RUF012 - one list for all, on purpose

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        type(self).requests.append(asked)
        if self.path != "/set.tgz":
            self.send_error(404)
            return
        start = 0
        if asked and self.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])  # type: ignore[index]
            if start >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        else:
            self.send_response(200)
        body = CONTENT[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.cut] if self.cut else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.ranges, Handler.cut, Handler.requests = True, 0, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def test_a_file_is_fetched_with_progress_and_only_once(server: str, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    file = Download(f"{server}/set.tgz", GOOD)
    path = download(file, tmp_path / "new", progress=lambda *call: calls.append(call))
    assert path.read_bytes() == CONTENT
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert not list(tmp_path.rglob("*.part"))
    download(file, tmp_path / "new")
    assert Handler.requests == [None]


def test_an_earlier_part_is_gone_on_with(server: str, tmp_path: Path) -> None:
    (tmp_path / "set.tgz.part").write_bytes(CONTENT[:123_456])
    path = download(Download(f"{server}/set.tgz", GOOD), tmp_path)
    assert path.read_bytes() == CONTENT
    assert Handler.requests == ["bytes=123456-"]


def test_broken_transfers_are_taken_up_again(server: str, tmp_path: Path) -> None:
    Handler.cut = 80_000
    path = download(Download(f"{server}/set.tgz", GOOD), tmp_path)
    assert path.read_bytes() == CONTENT
    assert Handler.requests == [None, "bytes=80000-", "bytes=160000-", "bytes=240000-"]


def test_what_was_fetched_stays_when_it_fails_for_good(server: str, tmp_path: Path) -> None:
    Handler.cut = 10_000
    with pytest.raises(BadData, match="cannot be downloaded") as caught:
        download(Download(f"{server}/set.tgz", GOOD), tmp_path, remedy="give it instead")
    assert str(caught.value).endswith("give it instead")
    assert (tmp_path / "set.tgz.part").stat().st_size == 50_000
    Handler.cut = 0
    assert download(Download(f"{server}/set.tgz", GOOD), tmp_path).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: str, tmp_path: Path) -> None:
    Handler.ranges = False
    (tmp_path / "set.tgz.part").write_bytes(b"from another time")
    assert download(Download(f"{server}/set.tgz", GOOD), tmp_path).read_bytes() == CONTENT


def test_a_complete_part_is_only_checked(server: str, tmp_path: Path) -> None:
    (tmp_path / "set.tgz.part").write_bytes(CONTENT)
    assert download(Download(f"{server}/set.tgz", GOOD), tmp_path).read_bytes() == CONTENT


def test_wrong_bytes_never_become_a_file(server: str, tmp_path: Path) -> None:
    wrong = Download(f"{server}/set.tgz", "md5:" + "0" * 32)
    with pytest.raises(BadData, match=r"gave 300,000 bytes.* expected md5:000.*removed"):
        download(wrong, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"set.tgz.lock"}
    (tmp_path / "set.tgz").write_bytes(b"the user's own")
    with pytest.raises(BadData, match="delete it"):
        download(wrong, tmp_path)
    assert (tmp_path / "set.tgz").read_bytes() == b"the user's own"


def test_missing_pages_and_silent_machines(server: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="Not Found"):
        download(Download(f"{server}/other.tgz", GOOD), tmp_path)
    # Nobody listens on port 9 of this machine: what it is like without a network.
    offline = Download("http://127.0.0.1:9/birds.tgz", GOOD)
    with pytest.raises(BadData) as caught:
        get("cub", [offline], tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "cannot be downloaded" in message
    assert "give it instead: cbml data check ARCHIVE --as cub" in message


def test_datasets_by_agreement(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="agreement first, see https://mmlab"):
        get("inshop", (), tmp_path, page=DATASETS["inshop"].page)


def test_downloads_are_well_formed() -> None:
    assert {name for name, spec in DATASETS.items() if spec.downloads} == {"cub", "cars", "sop"}
    for spec in DATASETS.values():
        assert spec.page.startswith("https://")
        for file in spec.downloads:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", file.digest)
            assert re.fullmatch(r"https?://\S+/[\w.]+", file.url)
