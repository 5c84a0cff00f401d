"""Queries and gallery, checked, of unit length and sorted by class."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.errors import BadData
from cbml.index.inputs import Labels, Matrix, read_sides, unit_rows

__all__ = ["Scene", "set_scene"]


class Scene(NamedTuple):
    """Queries before a gallery that is sorted by class, so that positives stand side by side.

    Args:
        rows: unit vectors of all pictures that were to be queries, ascending by class. (M, D)
        codes: their classes as numbers. (M,)
        order: where each stood in the embeddings as given. (M,)
        queries: those rows that have a positive, ascending. (Q,)
        gallery: unit vectors, ascending by class. (N, D)
        begin: first gallery row of the query's class. (Q,)
        end: one past the last. (Q,)
        own: the query's own gallery row, or -1 in a gallery of its own. (Q,)
    """

    rows: Tensor
    codes: NDArray[np.int64]
    order: NDArray[np.int64]
    queries: Tensor
    gallery: Tensor
    begin: Tensor
    end: Tensor
    own: Tensor

    def positives(self) -> Tensor:
        """R: how many gallery pictures share the query's class, itself left out. (Q,)"""
        return self.end - self.begin - (self.own >= 0).long()


def set_scene(
    embeddings: Matrix,
    labels: Labels,
    gallery_embeddings: Matrix | None,
    gallery_labels: Labels | None,
) -> Scene:
    """The scene of an evaluation; bad input is refused by the name of its argument.

    Args:
        embeddings: one row per query. (M, D)
        labels: one per row. (M,)
        gallery_embeddings: what the queries search, or None for themselves. (N, D)
        gallery_labels: one per row of the gallery, or None. (N,)
    """
    asking, answering = read_sides(embeddings, labels, gallery_embeddings, gallery_labels)
    matrix, names = asking
    if answering is None:
        codes = _codes(names)
        order = np.argsort(codes, kind="stable")
        rows = unit_rows(matrix, order, "embeddings")
        return _placed(rows, codes[order], order, rows, codes[order], is_self=True)
    other, other_names = answering
    codes, other_codes = np.split(_codes(np.concatenate((names, other_names))), [len(names)])
    order, other_order = (np.argsort(part, kind="stable") for part in (codes, other_codes))
    rows = unit_rows(matrix, order, "embeddings")
    gallery = unit_rows(other, other_order, "gallery_embeddings")
    return _placed(rows, codes[order], order, gallery, other_codes[other_order], is_self=False)


def _codes(names: NDArray[Any]) -> NDArray[np.int64]:
    return np.unique(names, return_inverse=True)[1]


def _placed(
    rows: Tensor,
    codes: NDArray[np.int64],
    order: NDArray[np.int64],
    gallery: Tensor,
    gallery_codes: NDArray[np.int64],
    *,
    is_self: bool,
) -> Scene:
    begin = np.searchsorted(gallery_codes, codes, side="left")
    end = np.searchsorted(gallery_codes, codes, side="right")
    own = np.arange(len(codes)) if is_self else np.full(len(codes), -1)
    queries = np.flatnonzero(end - begin > int(is_self))
    if not len(queries):
        raise BadData(
            f"labels: none of the {len(codes)} queries has another picture of its class to find"
        )
    begin, end, own = begin[queries], end[queries], own[queries]
    places = (torch.from_numpy(part) for part in (begin, end, own))
    return Scene(rows, codes, order, torch.from_numpy(queries), gallery, *places)
