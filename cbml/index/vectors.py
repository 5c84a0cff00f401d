"""Vectors under ids: what a store of them offers, and the checks of what it is given."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData

Vectors = NDArray[np.float32]
Ids = NDArray[np.int64]

# Unit vectors that went through half precision and back still pass; plain features do not.
LENGTH_TOLERANCE = 1e-3
LARGEST_ID = 2**62


class WrongIds(BadData):
    """Ids that are not in a store, or that are there already."""


@dataclass(frozen=True, kw_only=True)
class Matches:
    """The nearest neighbors of each query, nearest first; of equally near ones the smaller id.

    K is the number asked for, or the number of rows where there are fewer: nothing is filled up.

    Args:
        ids: Ids of the neighbors. (Q, K)
        similarities: Cosine similarities, descending. (Q, K)
    """

    ids: Ids = field(repr=False)
    similarities: Vectors = field(repr=False)


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


def as_unit_vectors(vectors: Vectors, dim: int, name: str) -> Vectors:
    """The vectors as contiguous rows; what is not float32, finite and of unit length is refused."""
    if not isinstance(vectors, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(vectors).__name__}")
    if vectors.dtype != np.float32:
        raise TypeError(f"{name} must be float32, got {vectors.dtype}: use .astype('float32')")
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise BadData(f"{name} must have shape (rows, {dim}), got {vectors.shape}")
    rows = np.ascontiguousarray(vectors)
    _refuse(~np.isfinite(rows).all(axis=1), f"{name} hold NaN or infinity")
    with np.errstate(over="ignore"):  # a length beyond float32 is infinite, and wrong in any case
        length = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    _refuse(length == 0.0, f"{name} hold only zeros")
    wrong = ~(np.abs(length - 1.0) <= LENGTH_TOLERANCE)
    _refuse(wrong, f"{name} are not of unit length (divide each row by its length)")
    return rows


def as_ids(ids: Ids, name: str = "ids") -> Ids:
    """The ids as an int64 array; negative ones are refused."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise TypeError(f"{name} must be one row of whole numbers, got {array.dtype} {array.shape}")
    _refuse(
        (array < 0) | (array >= LARGEST_ID), f"{name} must be from 0 to 2**62 - 1, they are not"
    )
    return array.astype(np.int64)


def as_new_ids(ids: Ids, rows: int, taken: Ids) -> Ids:
    """The ids of rows to be added: one per row, each once, none taken."""
    new = as_ids(ids)
    if len(new) != rows:
        raise BadData(f"ids must be one for each of the {rows} vectors, got {len(new)}")
    first = np.zeros(rows, dtype=np.bool_)
    first[np.unique(new, return_index=True)[1]] = True
    _refuse(~first, "ids repeat an earlier one")
    _refuse(np.isin(new, taken), "ids are in the index already", WrongIds)
    return new


def as_count(k: int) -> int:
    """`k` where it is a whole number of at least 1."""
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
        raise ValueError(f"k must be a whole number of at least 1, got {k!r}")
    return int(k)


def indices_of(ids: Ids, known: Ids) -> Ids:
    """Where each of the ids stands among the known ones; unknown ids are refused."""
    wanted = as_ids(ids)
    order = np.argsort(known, kind="stable")  # as good as sorted already, so this is one pass
    indices = np.searchsorted(known, wanted, sorter=order).clip(max=max(len(known) - 1, 0))
    if not len(known):
        _refuse(np.ones(len(wanted), dtype=np.bool_), "ids are not in the index", WrongIds)
        return wanted
    found: Ids = order[indices]
    _refuse(known[found] != wanted, "ids are not in the index", WrongIds)
    return found


def refuse_width(where: str, found: int, wanted: int) -> None:
    """Refuse a store that was made for other vectors."""
    if found != wanted:
        raise BadData(
            f"{where} holds vectors of {found} numbers, not {wanted}: "
            "use the model it was made with, or another store"
        )


def _refuse(bad: Any, what: str, kind: type[BadData] = BadData) -> None:
    indices = np.flatnonzero(bad)
    if len(indices):
        shown = ", ".join(map(str, indices[:10])) + (", ..." if len(indices) > 10 else "")
        raise kind(f"{what} in {len(indices)} of {len(bad)} rows: {shown}")
