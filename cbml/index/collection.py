"""One Milvus collection and the requests made to it; what goes wrong becomes one clear line."""

import contextlib
import importlib
import importlib.util
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from cbml.errors import BadData, MissingExtra
from cbml.index.rows import Ids, Vectors, refuse_width

__all__ = ["LARGEST_PAGE", "Collection"]

# Milvus gives at most so many rows to a request with a limit.
LARGEST_PAGE = 16_384
# It takes messages of 64 MiB.
MESSAGE_BYTES = 2**24
FIELDS = ["batch", "id", "vector"]


class Collection:
    """Rows of id, batch and vector, of which the id is the key; opened or made.

    Args:
        address: "http://host:19530", or the path of a milvus-lite file.
        name: letters, digits and underscores.
        dim: numbers in a vector; a collection with another width is refused.
        token: "user:password" or a key, for servers that ask for one.
        timeout: seconds to wait for an answer.
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
            where: the condition.
            fields: their names.
            limit: how many rows at most, up to LARGEST_PAGE.
            strict: see what all programs have written up to now, for which the server waits a
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
            queries: rows. (Q, D)
            where: the condition that a row must meet.
            limit: how many rows at most, up to LARGEST_PAGE.
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
        """Write rows, in as many messages as it takes.

        Args:
            ids: one for each row.
            batches: one for each row.
            vectors: rows. (N, D)
        """
        step = max(1, MESSAGE_BYTES // (4 * self.dim + 64))
        rows = zip(map(int, ids), batches, vectors, strict=True)
        named = ({"id": id_, "batch": batch, "vector": vector} for id_, batch, vector in rows)
        while block := list(itertools.islice(named, step)):
            with self._one_line():
                self._client.insert(self.name, data=block, timeout=self.timeout)

    def delete(self, where: str) -> None:
        """Delete all rows that meet a condition, by one request.

        Args:
            where: the condition.
        """
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
