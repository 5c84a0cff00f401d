"""Where vectors are kept: in memory and a folder, or on a Milvus server; one interface."""

from pathlib import Path
from typing import Protocol

from cbml.errors import BadData
from cbml.files import MANIFEST
from cbml.index.index import Index, Kind, Matches
from cbml.index.milvus import MilvusStore
from cbml.index.vectors import Ids, Vectors, refuse_width


class Store(Protocol):
    """Unit vectors under stable ids.

    Every call does all of its work or, with an error, none of it, and can be repeated. `immediate`
    says when changes last: from the moment of the call, or from `save`.
    """

    dim: int
    immediate: bool

    def __len__(self) -> int: ...

    def ids(self) -> Ids:
        """All ids, ascending, (N,)."""
        ...

    def add(self, vectors: Vectors, ids: Ids | None = None) -> Ids:
        """Add rows and give their ids.

        Args:
            vectors: float32 rows of unit length. (N, D)
            ids: Not in the store yet; by default after the largest ever used. (N,)
        """
        ...

    def remove(self, ids: Ids) -> None:
        """Take rows out.

        Args:
            ids: Ids of the rows to remove. (M,)
        """
        ...

    def vectors(self, ids: Ids) -> Vectors:
        """The rows of these ids, (M, D).

        Args:
            ids: Ids of the rows. (M,)
        """
        ...

    def search(self, queries: Vectors, k: int) -> Matches:
        """The k nearest rows of each query.

        Args:
            queries: float32 rows of unit length. (Q, D)
            k: Neighbors of each; fewer are given where the store has fewer.
        """
        ...

    def save(self, folder: Path | str | None = None) -> None:
        """Make what was added and removed last; a server has kept it already.

        Args:
            folder: Where to, for a store in a folder; by default where it was before.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections; nothing is saved."""
        ...


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
    engine, colon, place = address.partition(":")
    if engine == "milvus" and colon and place:
        return MilvusStore(place, dim, name=name, token=token)
    raise BadData(f"store {address!r}: write faiss, milvus:http://host:19530 or milvus:file.db")
