"""Where vectors live: in a folder beside the program, or on a Milvus server; one interface."""

from pathlib import Path
from typing import Protocol

from cbml.errors import BadData
from cbml.files import MANIFEST
from cbml.index.index import Index, Kind, Matches
from cbml.index.milvus import MilvusStore
from cbml.index.rows import Ids, Vectors, refuse_width

__all__ = ["FolderStore", "Store", "open_store"]


class Store(Protocol):
    """Unit vectors under stable ids.

    Every call does all of its work or, with an error, none of it, and can be repeated.
    """

    dim: int

    def __len__(self) -> int: ...

    def ids(self) -> Ids:
        """All ids, ascending, (N,)."""
        ...

    def add(self, vectors: Vectors, ids: Ids | None = None) -> Ids:
        """Add rows and give their ids.

        Args:
            vectors: float32 rows of unit length. (N, D)
            ids: not in the store yet; by default after the largest ever used. (N,)
        """
        ...

    def remove(self, ids: Ids) -> None:
        """Take rows out.

        Args:
            ids: which rows. (M,)
        """
        ...

    def vectors(self, ids: Ids) -> Vectors:
        """The rows of these ids, (M, D).

        Args:
            ids: which rows. (M,)
        """
        ...

    def search(self, queries: Vectors, k: int) -> Matches:
        """The k nearest rows of each query.

        Args:
            queries: float32 rows of unit length. (Q, D)
            k: neighbours of each; fewer are given where the store has fewer.
        """
        ...

    def save(self) -> None:
        """Make what was added and removed last; a server keeps it from the moment of the call."""
        ...

    def close(self) -> None:
        """Let go of files and connections; nothing is saved."""
        ...


class FolderStore:
    """An index together with the folder it is saved in.

    Args:
        folder: holds a saved index, or will after the first `save`.
        dim: numbers in a row.
        kind: of a new index; a saved one keeps its own.
    """

    def __init__(self, folder: Path, dim: int, *, kind: Kind = "flat") -> None:
        self.dim = dim
        self.folder = folder
        saved = (folder / MANIFEST).exists()
        self.index = Index.load(folder) if saved else Index(dim, kind=kind)
        refuse_width(str(folder), self.index.dim, dim)

    def __len__(self) -> int:
        return len(self.index)

    def ids(self) -> Ids:  # noqa: D102 - what these do is said once, in Store
        return self.index.ids()

    def add(self, vectors: Vectors, ids: Ids | None = None) -> Ids:  # noqa: D102
        return self.index.add(vectors, ids)

    def remove(self, ids: Ids) -> None:  # noqa: D102
        self.index.remove(ids)

    def vectors(self, ids: Ids) -> Vectors:  # noqa: D102
        return self.index.vectors(ids)

    def search(self, queries: Vectors, k: int) -> Matches:  # noqa: D102
        return self.index.search(queries, k)

    def save(self) -> None:  # noqa: D102
        self.index.save(self.folder)

    def close(self) -> None:  # noqa: D102
        pass


def open_store(
    address: str,
    *,
    dim: int,
    folder: Path,
    name: str = "cbml",
    kind: Kind = "flat",
    token: str | None = None,
) -> Store:
    """The store at an address, with what it holds; made when it does not exist.

    Args:
        address: "faiss" for an index in `folder`; "milvus:http://host:19530" for a server;
            "milvus:file.db" for milvus-lite in a file.
        dim: numbers in a row; a store with another width is refused.
        folder: where "faiss" saves.
        name: of the collection on a server: letters, digits and underscores. Each gallery needs
            its own.
        kind: of a new "faiss" index.
        token: "user:password" or a key, for servers that ask for one.
    """
    if address == "faiss":
        return FolderStore(folder, dim, kind=kind)
    engine, colon, place = address.partition(":")
    if engine == "milvus" and colon and place:
        return MilvusStore(place, dim, name=name, token=token)
    raise BadData(f"store {address!r}: write faiss, milvus:http://host:19530 or milvus:file.db")
