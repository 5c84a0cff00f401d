"""All stores keep the same promises, in a folder, in milvus-lite and on a real Milvus server."""

import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbml.errors import BadData, MissingExtra
from cbml.index import Store, open_store
from cbml.index.milvus import Collection, MilvusStore
from tests.index.milvus_server import MilvusServer
from tests.index.test_index import BAD_IDS, BAD_ROWS
from tests.index.vectors import random_ids, random_rows, tied_rows
from tests.oracles.neighbors import nearest

STORES = ["faiss", "lite", "server"]
numbers = itertools.count()
Reopen = Callable[..., Store]


@pytest.fixture
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """Opens the same new store again and again."""
    address = "faiss"
    if request.param == "lite":
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
        address = f"milvus:{tmp_path / 'vectors.db'}"
    if request.param == "server":
        address = f"milvus:{request.getfixturevalue('milvus_server').address}"
    name, opened = f"test_{next(numbers)}", []

    def opener(dim: int = 16) -> Store:
        opened.append(open_store(address, dim=dim, folder=tmp_path / "index", name=name))
        return opened[-1]

    yield opener
    for store in opened:
        store.close()


over_all_stores = pytest.mark.parametrize("reopen", STORES, indirect=True)


@over_all_stores
def test_a_store_keeps_its_promises(reopen: Reopen) -> None:
    store = reopen()
    assert (len(store), store.ids().tolist(), store.dim) == (0, [], 16)
    assert store.search(random_rows(0, 2), 3).ids.shape == (2, 0)
    assert store.add(random_rows(0, 0)).tolist() == []

    # Exact search, and ties by the smaller id; no more of them than Milvus can be asked to spare.
    rows, ids, wanted = tied_rows(1, 90), random_ids(1, 90), tied_rows(2, 25)
    assert store.add(rows[:40], ids[:40]).tolist() == ids[:40].tolist()
    store.add(rows[40:], ids[40:])
    for queries, k in [(wanted, 90), (wanted[:1], 200)]:
        found = store.search(queries, k)
        expected_ids, expected = nearest(queries.tolist(), rows.tolist(), ids.tolist(), k)
        assert found.ids.tolist() == expected_ids
        assert found.similarities.tolist() == expected
        assert (found.ids.dtype, found.similarities.dtype) == (np.int64, np.float32)

    assert np.array_equal(store.vectors(ids[::-1]), rows[::-1])
    store.remove(ids[:30])
    assert store.ids().tolist() == sorted(ids[30:].tolist())
    assert not np.isin(store.search(wanted, 60).ids, ids[:30]).any()
    top = int(ids.max())
    store.remove(np.array([top]) if top in ids[30:] else ids[30:31])
    assert store.add(rows[:2]).tolist() == [top + 1, top + 2], "ids do not come back"
    store.save()

    again = reopen()
    assert again.ids().tolist() == store.ids().tolist()
    assert len(again) == len(store) == 61
    assert np.array_equal(again.vectors(again.ids()), store.vectors(store.ids()))
    assert again.add(rows[:1]).tolist() == [top + 3]
    with pytest.raises(BadData, match="holds vectors of 16 numbers, not 17"):
        reopen(17)


@over_all_stores
def test_ties_at_the_last_place_go_to_the_smaller_id(reopen: Reopen) -> None:
    """Milvus is asked for 16 rows more than wanted: so many ties are decided by us."""
    store = reopen()
    rows = np.repeat(random_rows(0, 6), 10, axis=0)
    ids = random_ids(3, 60)
    store.add(rows, ids)
    found = store.search(rows[::10], 7).ids
    for place, row in enumerate(found.tolist()):
        assert row == sorted(ids[10 * place : 10 * place + 10].tolist())[:7]


@over_all_stores
def test_a_store_refuses_bad_rows_and_adds_nothing(reopen: Reopen) -> None:
    store = reopen()
    store.add(random_rows(1, 3))
    for rows, message in BAD_ROWS:
        with pytest.raises((BadData, TypeError), match=message):
            store.add(rows)  # type: ignore[arg-type]
        with pytest.raises((BadData, TypeError), match=message.replace("vectors", "queries")):
            store.search(rows, 1)  # type: ignore[arg-type]
    for ids, message in BAD_IDS:
        with pytest.raises((BadData, TypeError), match=message):
            store.add(random_rows(0, 20), ids)
    for change in (store.remove, store.vectors):
        with pytest.raises(BadData, match=r"ids are not in the index in 2 of 3 rows: 0, 2$"):
            change(np.array([3, 1, 99]))
    assert store.ids().tolist() == [0, 1, 2]


@pytest.mark.parametrize("reopen", ["lite", "server"], indirect=True)
def test_more_rows_than_a_message_and_a_page_hold(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cbml.index.milvus.MESSAGE_BYTES", 2**16)
    monkeypatch.setattr("cbml.index.milvus.IDS_AT_ONCE", 300)
    monkeypatch.setattr("cbml.index.milvus.LARGEST_PAGE", 500)
    store, rows = reopen(), random_rows(0, 1700)
    store.add(rows, np.arange(1700) * 3)
    assert store.ids().tolist() == list(range(0, 5100, 3))
    assert np.array_equal(store.vectors(store.ids()), rows)
    assert store.search(rows[::10], 1).ids[:, 0].tolist() == store.ids()[::10].tolist()
    store.remove(store.ids()[:1000])
    assert len(store) == 700
    with pytest.raises(BadData, match="k must be at most 500 for Milvus, got 501"):
        store.search(rows[:1], 501)


@pytest.mark.parametrize("reopen", ["lite", "server"], indirect=True)
@pytest.mark.parametrize("lost", [2, 3])
def test_a_connection_lost_in_mid_insert_leaves_nothing_to_see(
    reopen: Reopen, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two messages of rows is lost, or the mark that comes after them."""
    monkeypatch.setattr("cbml.index.milvus.MESSAGE_BYTES", 128 * 50)
    store = reopen()
    store.add(random_rows(0, 20))
    client = store._rows._client  # type: ignore[attr-defined]
    real, count = client.insert, itertools.count(1)

    def insert(*arguments: Any, **options: Any) -> Any:
        if next(count) == lost:
            raise ConnectionResetError("the line is dead")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(client, "insert", insert)
        with pytest.raises(ConnectionError, match=r"Milvus at .*: the line is dead; repeat"):
            store.add(random_rows(1, 100))
    wanted = random_rows(1, 3)
    for view in (store, reopen()):
        assert (len(view), view.ids().tolist()) == (20, list(range(20)))
        assert view.search(wanted, 50).ids.shape == (3, 20)
    assert store.add(random_rows(1, 100)).tolist() == list(range(20, 120)), "it can be repeated"
    assert store.search(wanted, 1).ids[:, 0].tolist() == [20, 21, 22]
    late = reopen()
    assert len(late) == 120
    assert late.search(wanted, 1).similarities.min() > 0.999


@pytest.mark.parametrize("reopen", ["lite", "server"], indirect=True)
def test_an_interrupted_creation_is_made_up_for(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    pymilvus = pytest.importorskip("pymilvus")

    def lost(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("the line is dead")

    for request in ("create_index", "load_collection"):
        with monkeypatch.context() as patch:
            patch.setattr(pymilvus.MilvusClient, request, lost)
            with pytest.raises(ConnectionError, match="the line is dead"):
                reopen()
    store = reopen()
    store.add(random_rows(0, 5))
    assert store.search(random_rows(0, 5), 1).ids[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_two_programs_see_whole_batches(milvus_server: MilvusServer) -> None:
    writer, reader = (MilvusStore(milvus_server.address, 16, name="two") for _ in range(2))
    writer.add(random_rows(0, 10))
    assert len(reader) == 0, "a reader keeps the view it has opened"
    assert reader.add(random_rows(1, 5)).tolist() == [10, 11, 12, 13, 14]
    assert len(reader) == 15
    assert writer.add(random_rows(2, 1)).tolist() == [15], "a writer looks first"


def test_kill_minus_nine_loses_nothing_and_shows_nothing_half(
    milvus_server: MilvusServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows that were confirmed, flushed or not, are there; those of a cut `add` are not."""
    monkeypatch.setattr("cbml.index.milvus.MESSAGE_BYTES", 2**16)
    store = MilvusStore(milvus_server.address, 16, name="killed", timeout=5)
    rows = random_rows(0, 3000)
    store.add(rows[:1000])
    store.remove(np.arange(10))
    real, count = Collection._one_line, itertools.count()

    def killing(collection: Collection) -> Any:
        if next(count) == 8:  # some messages are through, most are not
            milvus_server.kill()
        return real(collection)

    monkeypatch.setattr(Collection, "_one_line", killing)
    with pytest.raises(ConnectionError, match="repeat the command when it answers again"):
        store.add(rows[1000:])
    assert next(count) == 9, "the message after the kill is the one that failed"
    with pytest.raises(ConnectionError, match=f"Milvus at {milvus_server.address}: "):
        store.search(rows[:1], 1)
    with pytest.raises(ConnectionError, match=f"Milvus at {milvus_server.address}: "):
        MilvusStore(milvus_server.address, 16, name="killed", timeout=2)
    # gRPC may write lines of its own about a connection, such as "E0000 00:00:17 …"; ours are none.
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if not re.match(r"[IWEF]\d{4} ", line)] == []

    milvus_server.start()
    again = MilvusStore(milvus_server.address, 16, name="killed")
    assert again.ids().tolist() == list(range(10, 1000))
    assert np.array_equal(again.vectors(again.ids()), rows[10:1000])
    assert again.add(rows[1000:]).tolist() == list(range(1000, 3000))
    assert again.search(rows[2000:2020], 1).ids[:, 0].tolist() == list(range(2000, 2020))
    store.close()
    again.close()


def test_a_server_that_is_not_there_is_named() -> None:
    pytest.importorskip("pymilvus")
    with pytest.raises(ConnectionError, match=r"^Milvus at http://127\.0\.0\.1:9: .*; repeat"):
        MilvusStore("http://127.0.0.1:9", 16, name="nobody", timeout=1)


def test_a_foreign_collection_is_left_alone(milvus_server: MilvusServer) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(milvus_server.address)
    client.create_collection("foreign", dimension=16)
    with pytest.raises(BadData, match="collection 'foreign' is not ours; use another name"):
        MilvusStore(milvus_server.address, 16, name="foreign")
    client.close()


@pytest.mark.parametrize("address", ["", "faiss:", "milvus", "milvus:", "redis:x", "http://host"])
def test_unknown_addresses_are_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"write faiss, milvus:http://host:19530 or milvus:file\.db"):
        open_store(address, dim=4, folder=tmp_path)


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "a" * 256, "ä", "a\n"])
def test_bad_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="use letters, digits and underscores"):
        open_store("milvus:file.db", dim=4, folder=tmp_path, name=name)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"'milvus-lite' is not .* pip install 'cbml\[mil"):
            open_store(f"milvus:{tmp_path / 'a.db'}", dim=4, folder=tmp_path)
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtra, match=r"'pymilvus' is not installed"):
        open_store("milvus:http://localhost:19530", dim=4, folder=tmp_path)
