"""Neighbors among rows of one byte per number: a quarter of the memory, rounded vectors."""

from collections.abc import Mapping
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from cbml.errors import DamagedFile
from cbml.index.flat import FEW_PAIRS, Flat, one_thread_if, stored_rows
from cbml.index.vectors import Ids, Vectors

# Rows that are decoded at a time.
BLOCK = 2**14


class Sq8(Flat):
    """All rows as bytes; every query is compared with every row as it was rounded.

    Dimension d of a row is rounded to 256 steps between -reach_d and reach_d. A row beyond the
    reach widens it at least twofold and all rows are rounded anew, so that the errors of all
    roundings together stay below twice that of the last one, reach_d / 255.

    Args:
        dim: D.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        # Rounded rows may be a third longer than unit vectors.
        self.slack = 3.0 * dim * 2.0**-24
        self._reach: Vectors = np.full(dim, 2.0**-10, dtype=np.float32)
        self.faiss = self._with_reach(self._reach)

    def add(self, vectors: Vectors) -> None:
        """Append rows, rounded.

        Args:
            vectors: checked rows. (N, D)
        """
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

    def compare(self, queries: Vectors, places: Ids) -> Vectors:
        """The similarity of each query with each of its candidates as rounded, (Q, W).

        Args:
            queries: contiguous rows. (Q, D)
            places: candidates of each query. (Q, W)
        """
        similarities = np.empty(places.shape, dtype=np.float32)
        own_places = np.arange(places.shape[1], dtype=np.int64)[None]
        for query, candidates in enumerate(places):
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
        """From what was saved.

        Args:
            dim: D.
            arrays: as `arrays` gave them, not yet checked.
        """
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
