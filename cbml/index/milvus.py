"""Vectors in Milvus: a server, a cluster, or milvus-lite in a file.

Rows are sent in pieces, which a lost connection can cut short. So every `add` writes its rows under
a new batch number, at which nobody looks yet, and ends with one more row, the mark, whose id is
minus that number: from then on the batch counts. What an interrupted `add` left behind was never
visible, and the next one deletes it.
"""

import contextlib
import importlib
import importlib.util
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cbml.errors import BadData, MissingExtra
from cbml.index.flat import in_order
from cbml.index.vectors import (
    Ids,
    Matches,
    Vectors,
    as_count,
    as_ids,
    as_new_ids,
    as_unit_vectors,
    indices_of,
    refuse_width,
)

# Milvus gives at most so many rows to a request with a limit.
LARGEST_PAGE = 16_384
# It takes messages of 64 MiB.
MESSAGE_BYTES = 2**24
FIELDS = ["batch", "id", "vector"]
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
        dim: Numbers in a row; a collection with another width is refused.
        name: Name of the collection; made if missing.
        token: "user:password" or a key, for servers that ask for one.
        timeout: Seconds to wait for an answer.
    """

    immediate = True

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
        rows = as_unit_vectors(vectors, self.dim, "vectors")
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
        indices_of(ids, self._known(wanted))
        if len(wanted):  # one request, of which the server carries out all or nothing
            self._rows.delete(f"id in {wanted.tolist()}")
            self._read_mark()  # strict: what is read from now on comes after the removal

    def vectors(self, ids: Ids) -> Vectors:  # noqa: D102
        wanted = as_ids(ids)
        found = {
            row["id"]: row["vector"] for row in self._query(np.unique(wanted), ["id", "vector"])
        }
        indices_of(wanted, np.array(list(found), dtype=np.int64))
        rows = [found[name] for name in wanted.tolist()]
        return np.array(rows, dtype=np.float32).reshape(-1, self.dim)

    def search(self, queries: Vectors, k: int) -> Matches:  # noqa: D102
        rows = as_unit_vectors(queries, self.dim, "queries")
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

    def save(self, folder: Path | str | None = None) -> None:
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


class Collection:
    """One collection, opened or made: rows of id, batch and vector, with the id as the key.

    Whatever goes wrong with a request becomes one clear line.
    """

    def __init__(
        self, address: str, name: str, dim: int, *, token: str | None, timeout: float
    ) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w{0,254}", name, re.ASCII):
            raise BadData(f"collection {name!r}: use letters, digits and underscores")
        self.address = address
        self.name = name
        self.dim = dim
        self.timeout = timeout
        pymilvus = _import_pymilvus(address)
        # Its client reports an error twice, on standard error with a traceback and as exception.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        with self._one_line():
            self._client = pymilvus.MilvusClient(address, token=token or "", timeout=timeout)
            self._open(pymilvus)

    def query(
        self, where: str, fields: list[str], *, limit: int | None = None, strict: bool = True
    ) -> list[Any]:
        """These fields of the rows that meet a condition; with a limit, those of the smallest ids.

        Args:
            limit: How many rows at most, up to LARGEST_PAGE.
            strict: See what all programs have written up to now, for which the server waits a
                fifth of a second; else what this one has.
        """
        options = {} if limit is None else {"limit": limit}
        with self._one_line():
            rows = self._client.query(
                self.name,
                filter=where,
                output_fields=fields,
                timeout=self.timeout,
                consistency_level="Strong" if strict else "Session",
                **options,
            )
        return list(rows)

    def search(self, queries: Vectors, where: str, limit: int) -> list[list[tuple[float, int]]]:
        """Similarity and id of the nearest rows of each query, in the server's order; not strict.

        Args:
            queries: Unit vectors. (Q, D)
            where: The condition that a row must meet.
            limit: How many rows at most, up to LARGEST_PAGE.
        """
        found: list[list[tuple[float, int]]] = []
        step = max(1, MESSAGE_BYTES // max(4 * self.dim, 64 * limit))
        for start in range(0, len(queries), step):
            with self._one_line():
                answer = self._client.search(
                    self.name,
                    data=list(queries[start : start + step]),
                    filter=where,
                    limit=limit,
                    output_fields=["id"],
                    search_params={"metric_type": "IP"},
                    timeout=self.timeout,
                    consistency_level="Session",
                )
            found += [[(row["distance"], row["id"]) for row in hits] for hits in answer]
        return found

    def insert(self, ids: Sequence[int] | Ids, batches: Sequence[int], vectors: Vectors) -> None:
        """Write rows, in as many messages as it takes."""
        step = max(1, MESSAGE_BYTES // (4 * self.dim + 64))
        rows = zip(map(int, ids), batches, vectors, strict=True)
        named = ({"id": id_, "batch": batch, "vector": vector} for id_, batch, vector in rows)
        while block := list(itertools.islice(named, step)):
            with self._one_line():
                self._client.insert(self.name, data=block, timeout=self.timeout)

    def delete(self, where: str) -> None:
        """Delete all rows that meet a condition, by one request."""
        with self._one_line():
            self._client.delete(self.name, filter=where, timeout=self.timeout)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _open(self, pymilvus: Any) -> None:
        client, patience = self._client, self.timeout
        if not client.has_collection(self.name, timeout=patience):
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", pymilvus.DataType.INT64, is_primary=True)
            schema.add_field("batch", pymilvus.DataType.INT64)
            schema.add_field("vector", pymilvus.DataType.FLOAT_VECTOR, dim=self.dim)
            client.create_collection(
                self.name, schema=schema, consistency_level="Strong", timeout=patience
            )
        description = client.describe_collection(self.name, timeout=patience)
        fields = {field["name"]: field for field in description["fields"]}
        if sorted(fields) != FIELDS:
            raise BadData(f"{self.address}: collection {self.name!r} is not ours; use another name")
        where = f"{self.address}, collection {self.name!r},"
        refuse_width(where, int(fields["vector"]["params"]["dim"]), self.dim)
        # Apart from the creation, so that it is made up for where that was interrupted.
        if not client.list_indexes(self.name):
            parameters = client.prepare_index_params()
            parameters.add_index("vector", index_type="FLAT", metric_type="IP")
            client.create_index(self.name, parameters, timeout=patience)
        client.load_collection(self.name, timeout=patience)

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        """Turn whatever the client raises into one line that names the server."""
        try:
            yield
        except (BadData, MissingExtra, KeyboardInterrupt):
            raise
        except Exception as error:
            reason = " ".join(str(getattr(error, "message", "") or error).split())[:200]
            raise ConnectionError(
                f"Milvus at {self.address}: {reason}; repeat the command when it answers again"
            ) from error


def _import_pymilvus(address: str) -> Any:
    try:
        pymilvus = importlib.import_module("pymilvus")
    except ImportError:
        raise MissingExtra("pymilvus", "milvus") from None
    if "://" not in address and importlib.util.find_spec("milvus_lite") is None:
        raise MissingExtra("milvus-lite", "milvus")
    return pymilvus
