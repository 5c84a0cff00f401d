"""Neighbors by a quick look at every row and a close look at the best: a promised recall."""

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import faiss as untyped
import numpy as np
from numpy.typing import NDArray

from cbml.errors import DamagedFile
from cbml.index.flat import BLOCK, Flat, in_order, one_thread_if, stored_rows
from cbml.index.vectors import Ids, Vectors

faiss: Any = untyped  # its type stubs know little of its quantizers

# Fewer rows than this are compared in less than a millisecond.
LEAST_ROWS = 1000
# Rows that are asked for their neighbors when recall is measured, for how many, and how many
# candidates at most.
SAMPLE = 200
DEPTHS = (10, 100)
MOST_CANDIDATES = 2048
# Codes are made again when the rows have grown by this factor, and recall is measured again when so
# large a share of the rows came or went.
GROWTH = 1.25
CHANGE = 0.05
# The cost of the quick look at a row, and of the close look at a candidate, in exact comparisons of
# one query with one row; for few queries and for many, which exact search multiplies as matrices.
# benchmarks/index.py prints what they come from.
FEW, MANY = (1 / 16, 8.0), (1 / 2, 40.0)
MANY_QUERIES = 20


@dataclass(frozen=True)
class Measured:
    """How many candidates a recall takes, measured against exact search.

    Args:
        rows: Rows of the index when it was measured.
        queries: How many of them were asked for their neighbors.
        candidates: For each depth of `DEPTHS` the number that a search looks at closely; None
            where no number within reach has the recall.
        recalls: The recall with that number, or with the largest that was tried.
    """

    rows: int
    queries: int
    candidates: tuple[int | None, ...]
    recalls: tuple[float, ...]


class Pq4:
    """All rows in float32, and beside them as codes of 4 bits for two numbers.

    faiss compares a query with all codes in registers, which takes a small part of the time of an
    exact search. The best candidates are compared again, exactly. How many that must be is measured
    on rows of the index: enough that the recall, less twice its standard error, is what was asked
    for. Where a search would cost more than an exact one, it is an exact one.

    Args:
        recall: Share of the true nearest neighbors that searches find on average.
    """

    def __init__(self, dim: int, recall: float) -> None:
        self.dim, self.recall = dim, recall
        self.rows = Flat(dim)
        self.measured: Measured | None = None
        self._codes: Any = None  # IndexPQ of the first rows
        self._trained_on = 0
        self._scan: Any = None  # the codes as faiss scans them, of all rows
        self._lock = threading.Lock()  # the first of several searches prepares

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, vectors: Vectors) -> None:
        """Append rows."""
        self.rows.add(vectors)
        self._scan = None

    def remove(self, indices: Ids) -> None:
        """Take rows out; those behind them move up."""
        self.rows.remove(indices)
        if self._codes is not None:
            self._codes.remove_ids(faiss.IDSelectorBatch(indices))
        self._scan = None

    def vectors(self, indices: Ids) -> Vectors:
        """Copies of rows, (M, D)."""
        return self.rows.vectors(indices)

    def nearest(self, queries: Vectors, k: int, ids: Ids) -> tuple[Vectors, Ids]:
        """Similarities and ids of the k nearest rows that were found, (Q, k) each, in order."""
        self.prepare()
        width = self.candidates(k, len(queries))
        if width is None:
            return self.rows.nearest(queries, k, ids)
        similarities, indices = self._look(queries, width)
        similarities, chosen = in_order(similarities, ids[indices])
        return similarities[:, :k].copy(), chosen[:, :k].copy()

    def candidates(self, k: int, queries: int) -> int | None:
        """How many rows a search looks at closely; None for an exact search."""
        if self.measured is None or k > DEPTHS[-1]:
            return None
        width = self.measured.candidates[next(i for i, depth in enumerate(DEPTHS) if k <= depth)]
        quick, close = MANY if queries >= MANY_QUERIES else FEW
        worth = width is not None and quick * len(self) + close * width < len(self)
        return width if worth else None

    def prepare(self) -> None:
        """Make the codes of new rows, and measure, where that is due."""
        with self._lock:
            if self._scan is not None or len(self) < LEAST_ROWS:
                self.measured = self.measured if len(self) >= LEAST_ROWS else None
                return
            if self._codes is None or not len(self) < GROWTH * self._trained_on:
                self._train()
            for start in range(self._codes.ntotal, len(self), BLOCK):
                count = min(BLOCK, len(self) - start)
                self._codes.add(self._padded(stored_rows(self.rows.faiss, start, count)))
            self._scan = faiss.IndexPQFastScan(self._codes)
            known = 0 if self.measured is None else self.measured.rows
            if abs(len(self) - known) > CHANGE * known:
                self.measured = self._measure()

    def describe(self) -> dict[str, Any]:
        """What was asked for and what was measured, as plain values."""
        self.prepare()
        found: dict[str, Any] = {"recall": self.recall, "measured_with": 0, "nearest": []}
        if self.measured is not None:
            found["measured_with"] = self.measured.queries
            pairs = zip(DEPTHS, self.measured.recalls, strict=True)
            found["nearest"] = [
                {"k": k, "recall": recall, "candidates": self.candidates(k, 1)}
                for k, recall in pairs
            ]
        found["exact"] = not any(one["candidates"] for one in found["nearest"])
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What has to be saved."""
        self.prepare()
        arrays = self.rows.arrays()
        if self._codes is not None and self._codes.ntotal == len(self):
            codes = faiss.vector_to_array(self._codes.codes).reshape(len(self), -1)
            book = faiss.vector_to_array(self._codes.pq.centroids)
            arrays |= {"codes": codes, "codebook": book}
        return arrays

    def metadata(self) -> dict[str, Any]:
        """What has to be saved beside the arrays."""
        measured = None if self.measured is None else vars(self.measured)
        return {"recall": self.recall, "trained_on": self._trained_on, "measured": measured}

    @classmethod
    def restore(
        cls, dim: int, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]
    ) -> "Pq4":
        """From what was saved."""
        engine = cls(dim, checked_recall(metadata["recall"]))
        engine.rows = Flat.restore(dim, {"vectors": arrays["vectors"]})
        rest = {name: array for name, array in arrays.items() if name != "vectors"}
        if not rest:
            return engine
        if set(rest) != {"codes", "codebook"}:
            raise DamagedFile(f"expected codes and a codebook, found {sorted(rest)}")
        engine._restore_codes(rest["codes"], rest["codebook"])
        engine._trained_on = _checked_count(metadata["trained_on"], LEAST_ROWS)
        engine.measured = _checked_measured(metadata["measured"], len(engine))
        engine._scan = faiss.IndexPQFastScan(engine._codes)
        return engine

    def _restore_codes(self, codes: NDArray[Any], codebook: NDArray[Any]) -> None:
        empty = self._empty_codes()
        shape = (len(self), int(empty.code_size))
        if codes.dtype != np.uint8 or codes.shape != shape:
            raise DamagedFile(f"codes are not {shape[0]} rows of {shape[1]} bytes")
        size = 16 * int(empty.d)
        if codebook.dtype != np.float32 or codebook.shape != (size,):
            raise DamagedFile(f"the codebook is not {size} numbers")
        if not (np.abs(codebook) < 4).all():
            raise DamagedFile("the codebook is not of unit vectors")
        faiss.copy_array_to_vector(codebook, empty.pq.centroids)
        empty.is_trained = True
        if len(codes):
            empty.add_sa_codes(np.ascontiguousarray(codes))
        self._codes = empty

    def _empty_codes(self) -> Any:
        pairs = math.ceil(self.dim / 2)
        return faiss.IndexPQ(2 * pairs, pairs, 4, faiss.METRIC_INNER_PRODUCT)

    def _train(self) -> None:
        """A codebook of rows from all over the index, and no codes yet."""
        chosen = np.linspace(0, len(self) - 1, min(len(self), BLOCK)).astype(np.int64)
        self._codes = self._empty_codes()
        self._codes.train(self._padded(self.rows.vectors(chosen)))
        self._trained_on = len(self)
        self.measured = None

    def _padded(self, vectors: Vectors) -> Vectors:
        """An even number of columns."""
        return np.pad(vectors, ((0, 0), (0, self.dim % 2)))

    def _look(self, queries: Vectors, width: int) -> tuple[Vectors, Ids]:
        """Exact similarities and indices of the best candidates by their codes, (Q, width)."""
        with one_thread_if(len(queries) == 1):
            _, indices = self._scan.search(self._padded(queries), width)
        return self.rows.compare(queries, indices), indices

    def _measure(self) -> Measured:
        """Ask rows for their neighbors, exactly and by candidates.

        The row itself is among both and counts for neither. A candidate is right if it is as
        similar as the k-th true neighbor, so that ties may fall either way.
        """
        number = min(SAMPLE, len(self))
        sample = np.random.default_rng(0).choice(len(self), number, replace=False)
        queries = np.ascontiguousarray(self.rows.vectors(np.sort(sample)))
        deepest = min(DEPTHS[-1] + 1, len(self))
        exact, _ = self.rows.nearest(queries, deepest, np.arange(len(self)))
        quick, close = FEW
        width = min(MOST_CANDIDATES, max(1, int((1 - quick) * len(self) / close)))
        similarities, _ = self._look(queries, width)  # (Q, W) in the order of the codes
        found = [
            fewest(similarities, exact[:, min(depth, deepest - 1)], depth, self.recall)
            for depth in DEPTHS
        ]
        candidates, recalls = zip(*found, strict=True)
        return Measured(len(self), number, candidates, recalls)


def fewest(
    similarities: Vectors, least: Vectors, k: int, recall: float
) -> tuple[int | None, float]:
    """The smallest number of candidates with a recall of k neighbors, and that recall.

    Args:
        similarities: Of each query with its candidates, the row itself among them. (Q, W)
        least: Similarity of each query with its k-th neighbor. (Q,)
        k: neighbors.
        recall: That the mean over the queries must have, less twice its standard error.
    """
    right = np.cumsum(similarities >= least[:, None], axis=1) - 1  # without the row itself
    shares = np.clip(right, 0, k) / k  # (Q, W)
    means = shares.mean(axis=0)
    errors = shares.std(axis=0) / math.sqrt(len(shares))
    enough = np.flatnonzero(means - 2 * errors >= recall)
    enough = enough[enough >= k]  # there must be k besides the row itself
    if not len(enough):
        return None, float(means[-1])
    return int(enough[0]) + 1, float(means[enough[0]])


def checked_recall(recall: object) -> float:
    """A share between 0 and 1, both excluded."""
    if not isinstance(recall, float) or not 0.0 < recall < 1.0:
        raise ValueError(f"recall must be a number between 0 and 1, got {recall!r}; flat has 1")
    return recall


def _checked_count(value: object, least: int) -> int:
    if type(value) is not int or value < least:
        raise DamagedFile(f"not a number of rows: {value!r}")
    return value


def _checked_measured(found: Any, rows: int) -> Measured | None:
    if found is None:
        return None
    measured = Measured(
        _checked_count(found["rows"], 1),
        _checked_count(found["queries"], 1),
        tuple(None if one is None else _checked_count(one, 1) for one in found["candidates"]),
        tuple(float(one) for one in found["recalls"]),
    )
    if not len(measured.candidates) == len(measured.recalls) == len(DEPTHS):
        raise DamagedFile("recall was not measured at the usual depths")
    for depth, width in zip(DEPTHS, measured.candidates, strict=True):
        if width is not None and not depth <= width <= rows:
            raise DamagedFile(f"{width} candidates for {depth} neighbors of {rows} rows")
    return measured
