"""Neighbors by walking a graph of neighbors: quick, and nearly always right."""

from collections.abc import Mapping
from typing import Any

import faiss as untyped
import numpy as np
from numpy.typing import NDArray

from cbml.errors import DamagedFile
from cbml.index.flat import Flat, in_order
from cbml.index.vectors import LARGEST_ID, Ids, Vectors

faiss: Any = untyped  # its type stubs know little of its graphs

# Neighbors of a row in the graph (twice as many on the lowest level), and how many rows are kept
# in view while it is built; common values for some hundred dimensions.
LINKS = 32
BUILD_EFFORT = 128
EFFORT = 128


class Hnsw:
    """All rows in float32, and the graph in which queries walk towards their neighbors.

    A removed row stays in the graph as a step on the way to others, but is never an answer; when a
    quarter of the rows are such, the graph is rebuilt without them. A query that finds fewer
    rows than there are is compared with every row.

    Args:
        dim: D.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.rows = Flat(dim)
        self.graph = faiss.IndexHNSW(self.rows.faiss, LINKS)
        self.graph.hnsw.efConstruction = BUILD_EFFORT
        self.live = np.empty(0, dtype=np.int64)  # indices in the graph, ascending

    def __len__(self) -> int:
        return len(self.live)

    def add(self, vectors: Vectors) -> None:
        """Append rows.

        Args:
            vectors: checked rows. (N, D)
        """
        first = len(self.rows)
        self.graph.add(vectors)
        self.live = np.concatenate([self.live, np.arange(first, len(self.rows))])

    def remove(self, indices: Ids) -> None:
        """Take rows out; those behind them move up."""
        live = np.delete(self.live, indices)
        if 4 * len(live) > 3 * len(self.rows):
            self.live = live
            return
        fresh = Hnsw(self.dim)
        if len(live):
            fresh.add(self.rows.vectors(live))
        self.rows, self.graph, self.live = fresh.rows, fresh.graph, fresh.live

    def vectors(self, indices: Ids) -> Vectors:
        """Copies of rows, (M, D).

        Args:
            indices: which rows. (M,)
        """
        return self.rows.vectors(self.live[indices])

    def nearest(
        self, queries: Vectors, k: int, ids: Ids, effort: int = EFFORT
    ) -> tuple[Vectors, Ids]:
        """Similarities and ids of the k nearest rows that were found, (Q, k) each, in order.

        Args:
            queries: checked rows. (Q, D)
            k: at most the number of rows.
            ids: of all rows; of equally similar rows the one with the smaller id comes first.
            effort: rows that a query keeps in view, at least; more find more.
        """
        names = np.full(len(self.rows) + 1, LARGEST_ID)  # removed rows; the last is for "not found"
        names[self.live] = ids
        width = min(k + 8, len(self))
        indices = self._candidates(queries, width, self._parameters(max(effort, width)))
        found = self.rows.compare(queries, indices)  # -inf where a place is -1
        similarities, chosen = in_order(found, names[indices])
        similarities, chosen = similarities[:, :k].copy(), chosen[:, :k].copy()
        short = np.flatnonzero(chosen[:, -1] == LARGEST_ID)
        if len(short):
            removed = len(self.rows) - len(self)
            best, all_names = self.rows.nearest(queries[short], k + removed, names[:-1])
            kept = np.argsort(all_names == LARGEST_ID, axis=1, kind="stable")[:, :k]
            similarities[short] = np.take_along_axis(best, kept, 1)
            chosen[short] = np.take_along_axis(all_names, kept, 1)
        return similarities, chosen

    def _candidates(self, queries: Vectors, width: int, parameters: Any) -> Ids:
        """Places of rows near each query, -1 where there are fewer, (Q, width)."""
        similarities = np.empty((len(queries), width), dtype=np.float32)
        indices = np.empty((len(queries), width), dtype=np.int64)
        # The method that wraps this one loses its parameters when faiss.contrib.torch_utils is
        # imported, as pytorch-metric-learning does.
        self.graph.search_c(
            len(queries),
            faiss.swig_ptr(np.ascontiguousarray(queries, dtype=np.float32)),
            width,
            faiss.swig_ptr(similarities),
            faiss.swig_ptr(indices),
            parameters,
        )
        return indices

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What has to be saved."""
        graph = self.graph.hnsw
        return {
            **self.rows.arrays(),
            "live": self.live,
            "levels": faiss.vector_to_array(graph.levels),
            "neighbors": faiss.vector_to_array(graph.neighbors),
            "entry": np.array([graph.entry_point], dtype=np.int64),
        }

    @classmethod
    def restore(cls, dim: int, arrays: Mapping[str, NDArray[Any]]) -> "Hnsw":
        """From what was saved; the graph is checked, because faiss would walk it blindly.

        Args:
            dim: D.
            arrays: as `arrays` gave them, not yet checked.
        """
        if set(arrays) != {"vectors", "live", "levels", "neighbors", "entry"}:
            raise DamagedFile(f"not the arrays of a graph: {sorted(arrays)}")
        engine = cls(dim)
        vectors = Flat.restore(dim, {"vectors": arrays["vectors"]}).arrays()["vectors"]
        graph = engine.graph.hnsw
        room = faiss.vector_to_array(graph.cum_nneighbor_per_level).astype(np.int64)
        offsets = _checked_offsets(arrays, len(vectors), room)
        if len(vectors):
            engine.rows.add(vectors)
            engine.graph.ntotal = len(vectors)
            faiss.copy_array_to_vector(arrays["levels"], graph.levels)
            faiss.copy_array_to_vector(offsets.astype(np.uint64), graph.offsets)
            faiss.copy_array_to_vector(arrays["neighbors"], graph.neighbors)
            graph.entry_point = int(arrays["entry"][0])
            graph.max_level = int(arrays["levels"].max()) - 1
        engine.live = arrays["live"]
        return engine

    def _parameters(self, effort: int) -> Any:
        if len(self) == len(self.rows):
            return faiss.SearchParametersHNSW(efSearch=effort)
        is_live = np.zeros(len(self.rows), dtype=np.bool_)
        is_live[self.live] = True
        chosen = faiss.IDSelectorBitmap(np.packbits(is_live, bitorder="little"))
        return faiss.SearchParametersHNSW(efSearch=effort, sel=chosen)


def _checked_offsets(arrays: Mapping[str, NDArray[Any]], rows: int, room: Ids) -> Ids:
    """Where the neighbors of each row begin, (N + 1,); a graph that leads astray is refused.

    `room` says how many neighbors there is room for below each level.
    """
    levels, neighbors, live, entry = (
        arrays[name] for name in ("levels", "neighbors", "live", "entry")
    )
    shapes = [(levels, np.int32, rows), (neighbors, np.int32, None), (entry, np.int64, 1)]
    for array, dtype, length in [*shapes, (live, np.int64, None)]:
        if array.dtype != dtype or array.ndim != 1 or length not in (None, len(array)):
            raise DamagedFile("the arrays of the graph have other types or shapes")
    if len(live) and not ((np.diff(live) > 0).all() and live[0] >= 0 and live[-1] < rows):
        raise DamagedFile("the rows that are left are not an ascending part of all rows")
    if ((levels < 1) | (levels >= len(room))).any():
        raise DamagedFile("the graph has levels that do not exist")
    counts = room[levels]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if len(neighbors) != offsets[-1] or ((neighbors < -1) | (neighbors >= rows)).any():
        raise DamagedFile("the graph has neighbors that do not exist")
    # A neighbor on some level must reach that level itself.
    slot = np.arange(len(neighbors)) - np.repeat(offsets[:-1], counts)
    level = np.searchsorted(room, slot, side="right") - 1
    if ((neighbors >= 0) & (levels[neighbors] <= level)).any():
        raise DamagedFile("the graph has neighbors on levels that they do not reach")
    if rows and not (0 <= entry[0] < rows and levels[entry[0]] == levels.max()):
        raise DamagedFile("the graph is entered where it does not begin")
    return offsets
