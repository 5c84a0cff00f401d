"""Exact neighbors: faiss finds candidates, one routine decides about them."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from cbml.errors import DamagedFile
from cbml.index.vectors import Ids, Vectors, as_unit_vectors

# Numbers a second look may return at a time: 2**22 rows are 48 MiB.
LOOK_SIZE = 2**22
# Pairs that one thread compares in about a millisecond.
FEW_PAIRS = 2**13


class Flat:
    """All rows in float32; every query is compared with every row.

    For many queries faiss multiplies matrices, whose last bit depends on where a row stands. So its
    similarities only propose candidates, a few more than asked for. Those are compared again, pair
    by pair, by one routine that gives equal rows equal similarities. Where the last candidate is
    so close to the k-th neighbor that rounding, or a tie, could hide a row behind it, all rows
    that may belong to the k nearest are looked up. Equal rows thus tie on every processor, as
    they do in `cbml.evaluate`; rows that differ are in the order of that routine, which another
    processor may round differently in the last bit.
    """

    def __init__(self, dim: int) -> None:
        self.faiss = faiss.IndexFlatIP(dim)
        # Two float32 sums of D products of unit vectors, in any order, differ by less than this.
        self.slack = 2.1 * dim * 2.0**-24

    def __len__(self) -> int:
        return int(self.faiss.ntotal)

    def add(self, vectors: Vectors) -> None:
        """Append rows."""
        self.faiss.add(vectors)

    def remove(self, indices: Ids) -> None:
        """Take rows out; those behind them move up."""
        self.faiss.remove_ids(faiss.IDSelectorBatch(indices))

    def vectors(self, indices: Ids) -> Vectors:
        """Copies of rows, (M, D)."""
        return np.asarray(self.faiss.reconstruct_batch(indices), dtype=np.float32)

    def nearest(self, queries: Vectors, k: int, ids: Ids) -> tuple[Vectors, Ids]:
        """Similarities and ids of the k nearest rows, (Q, k) each, in order.

        Args:
            queries: Checked rows. (Q, D)
            k: At most the number of rows.
            ids: Ids of all rows; of equally similar rows the one with the smaller id comes first.
        """
        width = min(k + max(8, k // 32), len(self))
        with one_thread_if(len(queries) == 1):
            found, indices = self.faiss.search(queries, width)
        similarities, chosen = in_order(self.compare(queries, indices), ids[indices])
        similarities, chosen = similarities[:, :k].copy(), chosen[:, :k].copy()
        if width < len(self):
            hidden = found[:, -1] + self.slack >= similarities[:, -1]
            self._look_again(queries, np.flatnonzero(hidden), ids, similarities, chosen)
        return similarities, chosen

    def compare(self, queries: Vectors, indices: Ids) -> Vectors:
        """The similarity of each query with each of its candidates, pair by pair, (Q, W).

        Args:
            indices: Candidates of each query. (Q, W)
        """
        similarities = np.empty(indices.shape, dtype=np.float32)
        with one_thread_if(indices.size < FEW_PAIRS):
            faiss.fvec_inner_products_by_idx(  # type: ignore[attr-defined]  # not in its stubs
                faiss.swig_ptr(similarities),
                faiss.swig_ptr(queries),
                self.faiss.get_xb(),
                faiss.swig_ptr(indices),
                self.faiss.d,
                *indices.shape,
            )
        return similarities

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What has to be saved."""
        return {"vectors": stored_rows(self.faiss, 0, len(self))}

    @classmethod
    def restore(cls, dim: int, arrays: Mapping[str, NDArray[Any]]) -> "Flat":
        """From what was saved."""
        if set(arrays) != {"vectors"}:
            raise DamagedFile(f"expected only vectors, found {sorted(arrays)}")
        engine = cls(dim)
        engine.add(as_unit_vectors(arrays["vectors"], dim, "vectors"))
        return engine

    def _look_again(
        self, queries: Vectors, doubtful: Ids, ids: Ids, similarities: Vectors, chosen: Ids
    ) -> None:
        """Fill in the neighbors of the doubtful queries from all rows that may be among them."""
        k = similarities.shape[1]
        step = max(1, LOOK_SIZE // len(self))
        for start in range(0, len(doubtful), step):
            block = doubtful[start : start + step]
            radius = float(similarities[block, -1].min()) - 2 * self.slack
            bounds, _, indices = self.faiss.range_search(queries[block], radius)
            for query, first, last in zip(block, bounds[:-1], bounds[1:], strict=True):
                candidates = np.ascontiguousarray(indices[None, first:last])
                compared = self.compare(queries[query : query + 1], candidates)
                best, names = in_order(compared, ids[candidates])
                similarities[query], chosen[query] = best[0, :k], names[0, :k]


@contextlib.contextmanager
def one_thread_if(little: bool) -> Iterator[None]:
    """No other threads for little work: to wake and await them would take longer, or very long.

    OpenMP keeps this number for each thread that calls it, so other searches are not disturbed.
    """
    usual = faiss.omp_get_max_threads()
    if little:
        faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(usual)


def in_order(similarities: Vectors, ids: Ids) -> tuple[Vectors, Ids]:
    """Both sorted along their rows: larger similarity first, then smaller id."""
    order = np.lexsort((ids, -similarities), axis=-1)
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(ids, order, 1)


def stored_rows(index: faiss.Index, start: int, count: int) -> Vectors:
    """Copies of consecutive rows, (M, D)."""
    # Where faiss.contrib.torch_utils was imported (pytorch-metric-learning does), faiss answers
    # with tensors unless it is given an array to fill.
    rows = np.empty((count, index.d), dtype=np.float32)
    index.reconstruct_n(start, count, rows)
    return rows


# Neighbors among rows of one byte per number: a quarter of the memory, rounded vectors.

# Rows that are decoded at a time.
BLOCK = 2**14


class Sq8(Flat):
    """All rows as bytes; every query is compared with every row as it was rounded.

    Dimension d of a row is rounded to 256 steps between -reach_d and reach_d. A row beyond the
    reach widens it at least twofold and all rows are rounded again, so that the errors of all
    roundings together stay below twice that of the last one, reach_d / 255.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        # Rounded rows may be a third longer than unit vectors.
        self.slack = 3.0 * dim * 2.0**-24
        self._reach: Vectors = np.full(dim, 2.0**-10, dtype=np.float32)
        self.faiss = self._with_reach(self._reach)

    def add(self, vectors: Vectors) -> None:
        """Append rows, rounded."""
        needed = np.abs(vectors).max(axis=0)
        beyond = needed > self._reach
        if beyond.any():
            factor = 2 if len(self) else 1
            reach = np.where(beyond, np.maximum(factor * self._reach, needed), self._reach)
            wider = self._with_reach(reach)
            for start in range(0, len(self), BLOCK):
                count = min(BLOCK, len(self) - start)
                wider.add(stored_rows(self.faiss, start, count))
            self.faiss, self._reach = wider, reach
        self.faiss.add(vectors)

    def compare(self, queries: Vectors, indices: Ids) -> Vectors:
        """The similarity of each query with each of its candidates as rounded, (Q, W)."""
        similarities = np.empty(indices.shape, dtype=np.float32)
        own_places = np.arange(indices.shape[1], dtype=np.int64)[None]
        for query, candidates in enumerate(indices):
            rounded = Flat(self.dim)
            with one_thread_if(len(candidates) < FEW_PAIRS):
                rounded.add(self.vectors(candidates))
            similarities[query] = rounded.compare(queries[query : query + 1], own_places)
        return similarities

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What has to be saved."""
        codes = faiss.vector_to_array(self.faiss.codes).reshape(len(self), self.dim)
        return {"codes": codes, "reach": self._reach}

    @classmethod
    def restore(cls, dim: int, arrays: Mapping[str, NDArray[Any]]) -> "Sq8":
        """From what was saved."""
        if set(arrays) != {"codes", "reach"}:
            raise DamagedFile(f"expected codes and reach, found {sorted(arrays)}")
        codes, reach = arrays["codes"], arrays["reach"]
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != dim:
            raise DamagedFile(f"codes are not bytes in rows of {dim}")
        if (
            reach.dtype != np.float32
            or reach.shape != (dim,)
            or not ((reach > 0) & (reach < 4)).all()
        ):
            raise DamagedFile("reach is not one plausible length for each dimension")
        engine = cls(dim)
        engine.faiss, engine._reach = engine._with_reach(reach), reach
        if len(codes):
            engine.faiss.add_sa_codes(codes)
        return engine

    def _with_reach(self, reach: Vectors) -> Any:
        empty = faiss.IndexScalarQuantizer(
            self.dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        faiss.copy_array_to_vector(np.concatenate([-reach, 2 * reach]), empty.sq.trained)
        empty.is_trained = True
        return empty
