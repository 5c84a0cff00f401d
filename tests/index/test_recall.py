"""An approximate index has the recall that was asked for, says so, and gives up where it must."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbml.index import Index, Vectors
from cbml.index import pq4 as module
from cbml.index.pq4 import fewest
from tests.index.vectors import clustered_rows, random_rows


def recall(index: Index, rows: Vectors, wanted: Vectors, k: int) -> float:
    """Against plain products: a row is right if it is as similar as the k-th nearest."""
    products = wanted.astype(np.float64) @ rows.astype(np.float64).T
    least = -np.sort(-products, axis=1)[:, k - 1 : k]
    found = np.concatenate([index.search(query[None], k).ids for query in wanted])
    return float((np.take_along_axis(products, found, 1) >= least - 1e-7).mean())


def filled(rows: Vectors, recall: float = 0.95) -> Index:
    index = Index(rows.shape[1], kind="pq4", recall=recall)
    for start in range(0, len(rows), 700):
        index.add(rows[start : start + 700])
    return index


@pytest.mark.parametrize("wanted", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("dim", [17, 48])
def test_unseen_queries_find_what_was_promised(dim: int, wanted: float) -> None:
    rows = clustered_rows(0, 6200, dim)
    index = filled(rows[:6000], wanted)
    about = index.describe()
    assert about["recall"] == wanted
    assert about["measured_with"] == 200
    assert not about["exact"]
    ten, hundred = about["nearest"]
    for one in (ten, hundred):
        assert one["recall"] >= wanted
    assert 10 < ten["candidates"] < 750
    found = recall(index, rows[:6000], rows[6000:], 10)
    assert found >= wanted - 0.02  # other queries than those it was measured with
    if wanted == 0.6:
        assert found < 0.999, "no more work than asked for"


def test_more_recall_takes_more_candidates() -> None:
    rows = random_rows(0, 5000, 32)
    counts = [
        filled(rows, wanted).describe()["nearest"][0]["candidates"] for wanted in (0.5, 0.8, 0.95)
    ]
    assert counts == sorted(set(counts))


def test_similarities_are_exact_and_in_order() -> None:
    rows = np.repeat(clustered_rows(0, 2000), 2, axis=0)  # every row twice: ties
    index = filled(rows)
    assert index.describe()["nearest"][0]["candidates"]
    exact = Index(32)
    exact.add(rows)
    for query in clustered_rows(1, 10):
        found, truth = index.search(query[None], 10), exact.search(query[None], 4000)
        known = dict(zip(truth.ids[0].tolist(), truth.similarities[0].tolist(), strict=True))
        pairs = list(zip(found.similarities[0].tolist(), found.ids[0].tolist(), strict=True))
        assert pairs == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
        assert all(known[name] == similarity for similarity, name in pairs)


def test_where_exact_search_is_no_more_work_it_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision is one of counts: rows, candidates, and what each of them costs."""
    rows = random_rows(0, 3000, 48)
    index, exact = filled(rows), Index(48)
    exact.add(rows)
    monkeypatch.setattr(module, "FEW", (0.9, 100.0))
    assert index.describe()["exact"]
    wanted = random_rows(1, 3, 48)
    assert np.array_equal(index.search(wanted, 10).ids, exact.search(wanted, 10).ids)


def test_many_queries_and_many_neighbors_are_exact() -> None:
    rows, wanted = random_rows(0, 3000, 48), random_rows(1, 40, 48)
    index, exact = filled(rows, 0.9), Index(48)
    exact.add(rows)
    assert np.array_equal(index.search(wanted, 10).ids, exact.search(wanted, 10).ids)
    assert np.array_equal(index.search(wanted[:1], 101).ids, exact.search(wanted[:1], 101).ids)
    assert recall(index, rows, wanted, 10) < 1.0, "single queries are not"


def test_few_rows_are_compared_exactly() -> None:
    index = filled(random_rows(0, 999))
    assert index.describe() == {
        "kind": "pq4",
        "dim": 16,
        "rows": 999,
        "recall": 0.95,
        "measured_with": 0,
        "nearest": [],
        "exact": True,
    }


def measured_rows(index: Index) -> int:
    index.search(random_rows(0, 1, index.dim), 1)
    engine: Any = index._engine
    return int(engine.measured.rows)


def test_recall_is_measured_again_when_rows_came_or_went() -> None:
    index = filled(random_rows(0, 2000))
    assert measured_rows(index) == 2000
    index.add(random_rows(1, 80))
    assert measured_rows(index) == 2000, "a twentieth changes little"
    index.add(random_rows(2, 40))
    assert measured_rows(index) == 2120
    index.remove(np.arange(200))
    assert measured_rows(index) == 1920
    index.add(random_rows(3, 1000))
    assert measured_rows(index) == 2920
    index.remove(np.arange(200, 2700))
    assert index.describe()["exact"], "too few rows are left"


def test_rows_that_come_later_from_elsewhere_are_found(tmp_path: Path) -> None:
    """The codebook of the first rows knows nothing of them."""
    near, far = random_rows(0, 1500, 48), clustered_rows(1, 1600, 48, clusters=3)
    index = filled(near)
    index.search(near[:1], 1)
    index.add(far[:1500])
    assert recall(index, np.concatenate([near, far[:1500]]), far[1500:], 10) >= 0.93


def test_what_was_measured_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(clustered_rows(0, 3000), 0.8)
    index.save(tmp_path)  # measures
    about = index.describe()

    def never(self: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(module.Pq4, "_measure", never)
    monkeypatch.setattr(module.Pq4, "_train", never)
    loaded = Index.load(tmp_path)
    assert loaded.describe() == about
    query = clustered_rows(1, 1)
    assert np.array_equal(loaded.search(query, 10).ids, index.search(query, 10).ids)


def test_several_threads_may_search_first() -> None:
    rows = clustered_rows(0, 3000)
    index, wanted = filled(rows), clustered_rows(1, 8)
    found: list[Any] = [None] * 8

    def search(number: int) -> None:
        found[number] = index.search(wanted[number : number + 1], 10).ids

    threads = [threading.Thread(target=search, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        again = index.search(wanted[number : number + 1], 10).ids
        assert np.array_equal(found[number], again)


def test_worked_example_of_the_fewest_candidates() -> None:
    """Two queries and two neighbors; the first candidate is the row itself."""
    similarities = np.array([[1.0, 0.9, 0.1, 0.8], [1.0, 0.2, 0.7, 0.6]], dtype=np.float32)
    least = np.array([0.8, 0.6], dtype=np.float32)
    assert fewest(similarities, least, 2, 0.99) == (4, 1.0)
    assert fewest(similarities, least, 2, 0.45) == (3, 0.5)
    assert fewest(similarities[:, :3], least, 2, 0.6) == (None, 0.5)
