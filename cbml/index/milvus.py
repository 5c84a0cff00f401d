"""Vectors in Milvus: a server, a cluster, or milvus-lite in a file.

Rows are sent in pieces, which a lost connection can cut short. So every `add` writes its rows under
a new batch number, at which nobody looks yet, and ends with one more row, the mark, whose id is
minus that number: from then on the batch counts. What an interrupted `add` left behind was never
visible, and the next one deletes it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cbml.errors import BadData
from cbml.index.collection import LARGEST_PAGE, Collection
from cbml.index.flat import in_order
from cbml.index.index import Matches
from cbml.index.rows import Ids, Vectors, as_count, as_ids, as_new_ids, as_unit_rows, places_of

__all__ = ["MilvusStore"]

# Asked for beyond k, so that ties at the k-th place are cut by us and not by the server.
SPARE = 16
# Ids in one condition.
IDS_AT_ONCE = 8192


class MilvusStore:
    """Unit vectors in a collection of their own; every query is compared with every row.

    One program may write at a time; any number may search. A program sees the rows that had been
    added when it opened the store or last wrote to it.

    Args:
        address: "http://host:19530", or the path of a milvus-lite file.
        dim: numbers in a row; a collection with another width is refused.
        name: of the collection; made if missing.
        token: "user:password" or a key, for servers that ask for one.
        timeout: seconds to wait for an answer.
    """

    def __init__(
        self, address: str, dim: int, *, name: str, token: str | None = None, timeout: float = 30.0
    ) -> None:
        self.dim = dim
        self._batch, self._next_id = 0, 0
        self._rows = Collection(address, name, dim, token=token, timeout=timeout)
        self._read_mark()

    def __len__(self) -> int:
        answer = self._rows.query(self._visible(), ["count(*)"], strict=False)
        return int(answer[0]["count(*)"])

    def ids(self) -> Ids:  # noqa: D102 - what these do is said once, in Store
        found, page = [-1], [-1] * LARGEST_PAGE
        while len(page) == LARGEST_PAGE:
            where = f"id > {found[-1]} and {self._visible()}"
            page = sorted(row["id"] for row in self._rows.query(where, ["id"], limit=LARGEST_PAGE))
            found += page
        return np.array(found[1:], dtype=np.int64)

    def add(self, vectors: Vectors, ids: Ids | None = None) -> Ids:  # noqa: D102
        rows = as_unit_rows(vectors, self.dim, "vectors")
        self._read_mark()
        if ids is None:
            ids = np.arange(self._next_id, self._next_id + len(rows))
        new = as_new_ids(ids, len(rows), self._known(as_ids(ids)))
        if len(new):
            # What interrupted calls left behind, and the marks before the last one.
            self._rows.delete(f"id >= 0 and batch > {self._batch}")
            self._rows.delete(f"id < 0 and id > {-self._batch}")
            batch, next_id = self._batch + 1, max(self._next_id, int(new.max()) + 1)
            self._rows.insert(new, [batch] * len(new), rows)
            self._rows.insert([-batch], [next_id], rows[:1])
            self._batch, self._next_id = batch, next_id
        return new

    def remove(self, ids: Ids) -> None:  # noqa: D102
        wanted = np.unique(as_ids(ids))
        places_of(ids, self._known(wanted))
        if len(wanted):  # one request, of which the server carries out all or nothing
            self._rows.delete(f"id in {wanted.tolist()}")
            self._read_mark()  # strict: what is read from now on comes after the removal

    def vectors(self, ids: Ids) -> Vectors:  # noqa: D102
        wanted = as_ids(ids)
        found = {
            row["id"]: row["vector"] for row in self._query(np.unique(wanted), ["id", "vector"])
        }
        places_of(wanted, np.array(list(found), dtype=np.int64))
        rows = [found[name] for name in wanted.tolist()]
        return np.array(rows, dtype=np.float32).reshape(-1, self.dim)

    def search(self, queries: Vectors, k: int) -> Matches:  # noqa: D102
        rows = as_unit_rows(queries, self.dim, "queries")
        if as_count(k) > LARGEST_PAGE:
            raise BadData(f"k must be at most {LARGEST_PAGE} for Milvus, got {k}")
        hits = self._rows.search(rows, self._visible(), min(k + SPARE, LARGEST_PAGE))
        # All queries see the same rows; only a removal between two requests can tell them apart.
        width = min((len(found) for found in hits), default=0)
        shape = (len(rows), width)
        near = np.array([near for found in hits for near, _ in found[:width]], dtype=np.float32)
        names = np.array([name for found in hits for _, name in found[:width]], dtype=np.int64)
        near, names = in_order(near.reshape(shape), names.reshape(shape))
        return Matches(ids=names[:, :k], similarities=near[:, :k])

    def save(self) -> None:
        """Nothing is left to do: the server keeps what it has confirmed."""

    def close(self) -> None:  # noqa: D102
        self._rows.close()

    def _read_mark(self) -> None:
        """The number of the last complete batch, and the id after the largest ever used."""
        marks = self._rows.query("id < 0", ["id", "batch"])
        numbers = [(-int(mark["id"]), int(mark["batch"])) for mark in marks]
        self._batch, self._next_id = max(numbers, default=(0, 0))

    def _visible(self) -> str:
        return f"id >= 0 and batch <= {self._batch}"

    def _known(self, ids: Ids) -> Ids:
        """Those of the ids that are in the store."""
        return np.array([row["id"] for row in self._query(ids, ["id"])], dtype=np.int64)

    def _query(self, ids: Ids, fields: list[str]) -> Iterator[Any]:
        for start in range(0, len(ids), IDS_AT_ONCE):
            block = ids[start : start + IDS_AT_ONCE].tolist()
            yield from self._rows.query(f"id in {block} and {self._visible()}", fields)
