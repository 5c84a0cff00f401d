"""Vectors under stable ids and their nearest neighbors: in a folder, or on a Milvus server."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from cbml.errors import BadData, DamagedFile, check_choice
from cbml.files import MANIFEST, consistent, load_folder, save_folder
from cbml.index.flat import Flat, Sq8
from cbml.index.milvus import MilvusStore
from cbml.index.pq4 import Pq4, checked_recall
from cbml.index.vectors import (
    Ids,
    Matches,
    Store,
    Vectors,
    as_count,
    as_new_ids,
    as_unit_vectors,
    indices_of,
    refuse_width,
)

SAVED = "cbml index 1"
PART = "index.safetensors"
Kind = Literal["flat", "sq8", "pq4"]
KINDS: tuple[Kind, ...] = ("flat", "sq8", "pq4")
# Saved graphs of the first edition are read as this kind.
GRAPH = "hnsw"
RECALL = 0.95


class Index:
    """Unit vectors under stable ids, in memory; a `Store` that is saved in a folder.

    Vectors are float32 of unit length; what is not is refused with its row numbers, and nothing of
    that call is added. Searches may run in several threads at once, changes may not.

    Args:
        dim: Length of a vector, D.
        kind: "flat" compares with every vector and is exact; "sq8" does so with one byte per
            number, a quarter of the memory; "pq4" looks at all rows quickly and closely at the
            best, as many as it takes for `recall`.
        recall: For "pq4": the share of the true nearest neighbors, of up to 100, that a search
            finds on average; 0.95 by default. It is measured against exact search, by asking
            rows of the index for their neighbors, at the first search and when rows came or went.
        folder: Folder that `save` writes to.
    """

    immediate = False

    def __init__(
        self,
        dim: int,
        *,
        kind: Kind = "flat",
        recall: float | None = None,
        folder: Path | str | None = None,
    ) -> None:
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim must be a whole number of at least 1, got {dim!r}")
        self.dim = dim
        self.kind = check_choice(kind, "kind", KINDS)
        if recall is not None and kind != "pq4":
            raise ValueError(f"recall is for kind 'pq4': {kind!r} compares with every row")
        self.folder = None if folder is None else Path(folder)
        self._engine: Flat | Pq4 = Flat(dim) if kind == "flat" else Sq8(dim)
        if kind == "pq4":
            self._engine = Pq4(dim, RECALL if recall is None else checked_recall(recall))
        self._ids = np.empty(0, dtype=np.int64)
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return f"Index(dim={self.dim}, kind={self.kind!r}, rows={len(self)})"

    def describe(self) -> dict[str, Any]:
        """Kind, width and rows; for "pq4" the recall asked for and what was measured.

        "nearest" lists for 10 and 100 neighbors the measured recall and how many candidates a
        single query looks at closely, None where it is compared with every row; "exact" is true
        where that is so for all, because the recall cannot be reached with less work.
        """
        metadata: dict[str, Any] = {"kind": self.kind, "dim": self.dim, "rows": len(self)}
        return metadata | (self._engine.describe() if isinstance(self._engine, Pq4) else {})

    def ids(self) -> Ids:
        """All ids, ascending, (N,)."""
        return np.sort(self._ids)

    def add(self, vectors: Vectors, ids: Ids | None = None) -> Ids:
        """Add rows and give their ids; all of them, or none and an error.

        Args:
            vectors: float32 rows of unit length. (N, D)
            ids: Whole numbers from 0, not in the index yet; by default they go on after the largest
                ever used, so that the id of a removed row does not come back. (N,)
        """
        rows = as_unit_vectors(vectors, self.dim, "vectors")
        if ids is None:
            ids = np.arange(self._next_id, self._next_id + len(rows))
        new = as_new_ids(ids, len(rows), self._ids)
        if len(new):
            self._engine.add(rows)
            self._ids = np.concatenate([self._ids, new])
            self._next_id = max(self._next_id, int(new.max()) + 1)
        return new

    def remove(self, ids: Ids) -> None:
        """Take rows out; if one of the ids is unknown, none is.

        Args:
            ids: Ids of the rows to remove. (M,)
        """
        indices = np.unique(indices_of(ids, self._ids))
        if len(indices):
            self._engine.remove(indices)
            self._ids = np.delete(self._ids, indices)

    def vectors(self, ids: Ids) -> Vectors:
        """The rows of these ids, (M, D).

        Args:
            ids: Ids of the rows. (M,)
        """
        return self._engine.vectors(indices_of(ids, self._ids))

    def search(self, queries: Vectors, k: int) -> Matches:
        """The k nearest rows of each query.

        Args:
            queries: float32 rows of unit length. (Q, D)
            k: Neighbors of each; fewer are given where the index has fewer.
        """
        rows, width = as_unit_vectors(queries, self.dim, "queries"), min(as_count(k), len(self))
        if not (width and len(rows)):
            empty = np.empty((len(rows), width))
            return Matches(ids=empty.astype(np.int64), similarities=empty.astype(np.float32))
        similarities, ids = self._engine.nearest(rows, width, self._ids)
        return Matches(ids=ids, similarities=similarities)

    def save(self, folder: Path | str | None = None) -> None:
        """Save everything; the folder holds the old index or the new one, never something between.

        Args:
            folder: Made if missing; an index in it is replaced. By default where the index was
                loaded from or saved to before.
        """
        if folder is not None:
            self.folder = Path(folder)
        if self.folder is None:
            raise ValueError("folder is missing: this index was never saved or loaded")
        arrays = {**self._engine.arrays(), "ids": self._ids}
        metadata: dict[str, Any] = {"dim": self.dim, "kind": self.kind, "rows": len(self)}
        metadata["next_id"] = self._next_id
        if isinstance(self._engine, Pq4):
            metadata["approximation"] = self._engine.metadata()
        parts = {PART: lambda path: safetensors.numpy.save_file(arrays, path)}
        save_folder(self.folder, SAVED, parts, metadata)

    def close(self) -> None:
        """Nothing is left to do: an index holds no file open."""

    @classmethod
    def load(cls, folder: Path | str) -> "Index":
        """A saved index; every byte is compared with its SHA-256 before anything is made of it.

        Args:
            folder: Folder written by `save`.
        """
        return consistent(Path(folder), lambda: cls._load(Path(folder)))

    @classmethod
    def _load(cls, folder: Path) -> "Index":
        parts, metadata = load_folder(folder, SAVED)
        if set(parts) != {PART}:
            raise DamagedFile(f"{folder}: a saved index has one part, {PART}")
        try:
            index = cls._restore(metadata, safetensors.numpy.load_file(parts[PART]))
        except Exception as error:
            # The hash is right, so somebody meant it: still no traceback, and no faiss.
            raise DamagedFile(f"{parts[PART]}: not a saved index ({error})") from None
        index.folder = folder
        return index

    @classmethod
    def _restore(cls, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> "Index":
        ids, next_id = arrays.pop("ids"), metadata["next_id"]
        index = cls(metadata["dim"], kind="pq4" if metadata["kind"] == GRAPH else metadata["kind"])
        if metadata["kind"] == GRAPH:
            index._engine.add(_rows_of_graph(arrays, index.dim))
        elif isinstance(index._engine, Pq4):
            index._engine = Pq4.restore(index.dim, arrays, metadata["approximation"])
        else:
            index._engine = type(index._engine).restore(index.dim, arrays)
        index._ids = as_new_ids(ids, len(index._engine), index._ids)
        used = int(ids.max()) + 1 if len(ids) else 0
        if type(next_id) is not int or next_id < used or metadata["rows"] != len(ids):
            raise DamagedFile("its numbers of rows do not agree")
        index._next_id = next_id
        return index


def _rows_of_graph(arrays: dict[str, NDArray[Any]], dim: int) -> Vectors:
    """The rows of a saved graph of neighbors; its links are left alone."""
    if set(arrays) != {"vectors", "live", "levels", "neighbors", "entry"}:
        raise DamagedFile(f"not the arrays of a graph: {sorted(arrays)}")
    live = arrays["live"]
    if live.dtype != np.int64 or live.ndim != 1 or (np.diff(live) <= 0).any():
        raise DamagedFile("live is not a list of ascending rows")
    if len(live) and not 0 <= live[0] <= live[-1] < len(arrays["vectors"]):
        raise DamagedFile("live names rows that are not there")
    return as_unit_vectors(arrays["vectors"][live], dim, "vectors")


def open_store(
    address: str,
    *,
    dim: int,
    folder: Path,
    name: str = "cbml",
    kind: Kind = "flat",
    recall: float | None = None,
    token: str | None = None,
) -> Store:
    """The store at an address, with what it holds; made when it does not exist.

    Args:
        address: "faiss" for an index in `folder`; "milvus:http://host:19530" for a server;
            "milvus:file.db" for milvus-lite in a file.
        dim: Numbers in a row; a store with another width is refused.
        folder: Folder that "faiss" saves to.
        name: Name of the collection on a server: letters, digits and underscores. Each gallery
            needs its own.
        kind: Kind of a new "faiss" index.
        recall: Recall of a new "faiss" index of kind "pq4".
        token: "user:password" or a key, for servers that ask for one.
    """
    if address == "faiss":
        saved = (folder / MANIFEST).exists()
        new = None if saved else Index(dim, kind=kind, recall=recall, folder=folder)
        index = Index.load(folder) if new is None else new
        refuse_width(str(folder), index.dim, dim)
        return index
    engine, colon, location = address.partition(":")
    if engine == "milvus" and colon and location:
        return MilvusStore(location, dim, name=name, token=token)
    raise BadData(f"store {address!r}: write faiss, milvus:http://host:19530 or milvus:file.db")
