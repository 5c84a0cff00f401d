"""An index finds what plain loops find, keeps its ids and refuses what it cannot use."""

from pathlib import Path

import numpy as np
import pytest

import cbml
from cbml.errors import BadData
from cbml.index import KINDS, Index, open_store
from cbml.index.vectors import Vectors
from tests.index.vectors import clustered_rows, random_ids, random_rows, tied_rows, unit
from tests.oracles.neighbors import nearest


@pytest.mark.parametrize("seed", range(60))
def test_exact_search_with_many_ties_equals_plain_loops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    number, queries = int(generator.integers(1, 120)), int(generator.choice([1, 2, 5, 30]))
    k = int(generator.choice([1, 2, 3, number // 2 + 1, number, number + 5]))
    # Few different rows, each many times, so that ties go far across the k-th place.
    rows = tied_rows(seed, 7)[generator.integers(7, size=number)]
    ids, wanted = random_ids(seed, number), tied_rows(seed + 1000, queries)
    index = Index(16)
    index.add(rows, ids)
    found = index.search(wanted, k)
    expected_ids, expected = nearest(wanted.tolist(), rows.tolist(), ids.tolist(), k)
    assert found.ids.tolist() == expected_ids
    assert found.similarities.tolist() == expected


@pytest.mark.parametrize("queries", [1, 19, 20, 41])
@pytest.mark.parametrize("dim", [3, 64, 67])
def test_equal_rows_are_ties_wherever_they_stand(queries: int, dim: int) -> None:
    """faiss multiplies matrices for 20 queries and more, and rounds by the place of a row."""
    rows = np.repeat(random_rows(dim, 97, dim), 11, axis=0)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    ids, wanted = random_ids(1, len(rows)), random_rows(2, queries, dim)
    index = Index(dim)
    index.add(rows, ids)
    found = index.search(wanted, 30)  # in the midst of the eleven copies of the third row
    exact = wanted.astype(np.float64) @ rows.astype(np.float64).T
    for query in range(queries):
        # Copies may differ in float64 as well, far below what tells other rows apart.
        order = np.lexsort((ids, -exact[query].round(12)))[:30]
        assert found.ids[query].tolist() == ids[order].tolist()
        assert len(set(found.similarities[query].tolist())) == 3
    assert np.allclose(found.similarities, -np.sort(-exact, axis=1)[:, :30], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_alone_finds_what_it_finds_among_others(kind: str) -> None:
    """Fewer than 20 of kind "pq4", which searches exactly for more."""
    number = 19 if kind == "pq4" else 64
    rows, wanted = clustered_rows(0, 1500), clustered_rows(1, number)
    index = Index(32, kind=kind)  # type: ignore[arg-type]
    index.add(rows)
    together = index.search(wanted, 10)
    for place in range(0, number, 6):
        alone = index.search(wanted[place : place + 1], 10)
        assert alone.ids[0].tolist() == together.ids[place].tolist()
        assert alone.similarities[0].tolist() == together.similarities[place].tolist()


def recall(kind: str, rows: Vectors, wanted: Vectors, k: int = 10) -> float:
    exact, other = Index(rows.shape[1]), Index(rows.shape[1], kind=kind)  # type: ignore[arg-type]
    exact.add(rows)
    for start in range(0, len(rows), 500):
        other.add(rows[start : start + 500])
    left, right = exact.search(wanted, k).ids, other.search(wanted, k).ids
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(left, right, strict=True)]))


@pytest.mark.parametrize(("kind", "least"), [("flat", 1.0), ("sq8", 0.95), ("pq4", 0.95)])
def test_recall(kind: str, least: float) -> None:
    assert set(KINDS) == {"flat", "sq8", "pq4"}
    rows = clustered_rows(0, 2100)
    assert recall(kind, rows[100:], rows[:100]) >= least


def test_sq8_widens_its_reach_without_losing_its_rows() -> None:
    index, rows = Index(16, kind="sq8"), random_rows(0, 500)
    for power in range(9, -1, -1):  # later rows reach further, again and again
        part = rows[50 * (9 - power) : 50 * (10 - power)].copy()
        part[:, :8] *= 2.0**-power
        rows[50 * (9 - power) : 50 * (10 - power)] = unit(part)
        index.add(unit(part))
    error = np.abs(index.vectors(np.arange(500)) - rows).max(axis=0)
    assert (error <= 2 * np.abs(rows).max(axis=0) * 2 / 255).all()


@pytest.mark.parametrize("kind", KINDS)
def test_random_changes_keep_ids_and_rows_together(kind: str) -> None:
    generator = np.random.default_rng(3)
    index = Index(16, kind=kind)  # type: ignore[arg-type]
    truth: dict[int, Vectors] = {}
    for step in range(40):
        if truth and step % 3 == 2:
            gone = generator.choice(sorted(truth), size=int(generator.integers(1, len(truth) + 1)))
            index.remove(gone)
            truth = {name: row for name, row in truth.items() if name not in set(gone.tolist())}
        else:
            rows = random_rows(step, int(generator.integers(0, 40)))
            own = None if step % 2 else 10_000 + 100 * step + np.arange(len(rows))
            names = index.add(rows, own)
            assert not set(names.tolist()) & set(truth)
            truth |= dict(zip(names.tolist(), rows, strict=True))
        assert index.ids().tolist() == sorted(truth)
        if truth:
            names = np.array(list(truth))
            rows = np.array(list(truth.values()))
            assert np.allclose(index.vectors(names), rows, atol=0.02 if kind == "sq8" else 0)
            assert sorted(index.search(rows[:1], len(truth)).ids[0].tolist()) == sorted(truth)
            assert index.search(rows, 1).ids[:, 0].tolist() == names.tolist()


def test_the_id_of_a_removed_row_does_not_come_back() -> None:
    index = Index(16)
    assert index.add(random_rows(0, 3)).tolist() == [0, 1, 2]
    index.remove(np.array([2, 2]))
    assert index.add(random_rows(1, 1), np.array([40])).tolist() == [40]
    index.remove(np.array([40]))
    assert index.add(random_rows(2, 2)).tolist() == [41, 42]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_index_finds_nothing(kind: str) -> None:
    index = cbml.Index(16, kind=kind)  # type: ignore[arg-type]
    found = index.search(random_rows(0, 3), 5)
    assert found.ids.shape == found.similarities.shape == (3, 0)
    assert (found.ids.dtype, found.similarities.dtype) == (np.int64, np.float32)
    index.add(random_rows(0, 3))
    assert index.search(random_rows(0, 0), 5).ids.shape == (0, 3)
    index.remove(index.ids())
    assert len(index) == 0
    assert index.search(random_rows(0, 1), 1).similarities.shape == (1, 0)
    assert index.vectors(np.array([], dtype=np.int64)).shape == (0, 16)


def spoiled(place: int, value: float) -> Vectors:
    rows = random_rows(0, 20)
    rows[place] = value
    return rows


BAD_ROWS = [
    (spoiled(13, np.nan), r"vectors hold NaN or infinity in 1 of 20 rows: 13$"),
    (spoiled(0, -np.inf), r"vectors hold NaN or infinity in 1 of 20 rows: 0$"),
    (spoiled(19, 0.0), r"vectors hold only zeros in 1 of 20 rows: 19$"),
    (spoiled(7, 1.0), r"not of unit length \(divide each row by its length\) in 1 of 20 rows: 7$"),
    (spoiled(7, 3e38), r"not of unit length .* in 1 of 20 rows: 7$"),
    (3 * random_rows(0, 20), r"in 20 of 20 rows: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.$"),
    (random_rows(0, 20, 15), r"vectors must have shape \(rows, 16\), got \(20, 15\)"),
    (random_rows(0, 20)[0], r"vectors must have shape \(rows, 16\), got \(16,\)"),
    (random_rows(0, 20).astype(np.float64), "vectors must be float32, got float64"),
    (random_rows(0, 20).tolist(), "vectors must be a numpy array, got list"),
]
BAD_IDS = [
    (np.arange(19), "one for each of the 20 vectors, got 19"),
    (np.arange(20) // 2 * 2 + 100, r"repeat an earlier one in 10 of 20 rows: 1, 3, 5"),
    (np.arange(20) + 1, r"are in the index already in 2 of 20 rows: 0, 1$"),
    (np.arange(20) - 1, r"must be from 0 to 2\*\*62 - 1, they are not in 1 of 20 rows: 0$"),
    (np.arange(20) + 2**62 - 19, r"they are not in 1 of 20 rows: 19$"),
    (np.arange(20.0), "ids must be one row of whole numbers, got float64"),
    (np.arange(20)[None], "ids must be one row of whole numbers"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_bad_rows_and_ids_are_refused_and_nothing_is_added(kind: str) -> None:
    index = Index(16, kind=kind)  # type: ignore[arg-type]
    index.add(random_rows(1, 3))
    for rows, message in BAD_ROWS:
        with pytest.raises((BadData, TypeError), match=message):
            index.add(rows)  # type: ignore[arg-type]
        with pytest.raises((BadData, TypeError), match=message.replace("vectors", "queries")):
            index.search(rows, 1)  # type: ignore[arg-type]
    for ids, message in BAD_IDS:
        with pytest.raises((BadData, TypeError), match=message):
            index.add(random_rows(0, 20), ids)
    for change in (index.remove, index.vectors):
        with pytest.raises(BadData, match=r"ids are not in the index in 2 of 3 rows: 0, 2$"):
            change(np.array([3, 1, 99]))
    assert index.ids().tolist() == [0, 1, 2]
    assert index.add(random_rows(2, 1)).tolist() == [3]


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "3"])
def test_k_must_be_a_positive_whole_number(k: int) -> None:
    with pytest.raises(ValueError, match="k must be a whole number of at least 1"):
        Index(16).search(random_rows(0, 1), k)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="dim must be a whole number of at least 1, got 0"):
        Index(0)
    with pytest.raises(ValueError, match="kind must be one of 'flat', 'sq8', 'pq4', got 'ivf'"):
        Index(8, kind="ivf")  # type: ignore[arg-type]
    for recall in (0.0, 1.0, 1, "0.9", float("nan")):
        with pytest.raises(ValueError, match="recall must be a number between 0 and 1, got"):
            Index(8, kind="pq4", recall=recall)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="recall is for kind 'pq4': 'flat' compares"):
        Index(8, recall=0.9)


def test_an_index_is_a_store_that_knows_its_folder(tmp_path: Path) -> None:
    index = Index(16)
    with pytest.raises(ValueError, match="never saved or loaded"):
        index.save()
    index.add(random_rows(0, 5))
    index.save(tmp_path / "index")
    store = open_store("faiss", dim=16, folder=tmp_path / "index")
    assert isinstance(store, Index)
    store.add(random_rows(1, 3))
    store.save()
    store.close()
    assert len(Index.load(tmp_path / "index")) == 8
