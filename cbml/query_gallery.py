"""Queries and what they search, checked once: unit embeddings and classes as integer codes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.outputs import Outputs

__all__ = ["Labels", "Matrix", "QueryGallery", "as_labels", "as_unit"]

Matrix = NDArray[Any] | Tensor
Labels = NDArray[Any] | Tensor | Sequence[int] | Sequence[str]
Embeddings = NDArray[np.float32]
Codes = NDArray[np.int64]

# Rows that are widened at a time: few enough to stay in the processor's cache.
CHUNK = 512


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryGallery:
    """Embeddings that search among themselves, or that search a gallery; made by `of`.

    An image is never a result of itself. In one set it is known by its index; in a gallery that
    holds the queries too, by `self_indices`.

    Args:
        embeddings: Unit vectors of the queries, in the order given. (Q, D)
        codes: Class of each query, an index into `class_labels`. (Q,)
        class_labels: The label that each code stands for, ascending. (C,)
        gallery_embeddings: Unit vectors of what is searched; None where the queries search among
            themselves. (G, D)
        gallery_codes: Class of each gallery image. (G,)
        self_indices: Index in the gallery of each query itself, -1 for a query that is not in it;
            None where no query is. (Q,)
        parts: Further tensors of the queries by name, for a reranker; Q rows each.
        gallery_parts: Parts of the gallery; G rows each.
    """

    embeddings: Embeddings
    codes: Codes
    class_labels: NDArray[Any]
    gallery_embeddings: Embeddings | None = None
    gallery_codes: Codes | None = None
    self_indices: Codes | None = None
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    gallery_parts: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        embeddings: "Matrix | Outputs | QueryGallery",
        labels: Labels | None = None,
        *,
        gallery_embeddings: Matrix | Outputs | None = None,
        gallery_labels: Labels | None = None,
        self_indices: Labels | None = None,
    ) -> "QueryGallery":
        """Check embeddings and labels, scale them to unit length and number the classes.

        Args:
            embeddings: One row per query, array or tensor, of any length but zero, or `Outputs`
                with parts for a reranker; what is a `QueryGallery` already is given back. (Q, D)
            labels: Integers or strings, one per query. (Q,)
            gallery_embeddings: What the queries search, unless they search among themselves. (G, D)
            gallery_labels: One per row of the gallery. (G,)
            self_indices: Index in the gallery of each query itself, to be left out of its results;
                -1 for a query that is not in it. (Q,)
        """
        if isinstance(embeddings, QueryGallery):
            if any(part is not None for part in (labels, gallery_embeddings, gallery_labels)):
                raise ValueError(
                    "a QueryGallery has its labels and gallery: give nothing beside it"
                )
            return embeddings
        if labels is None:
            raise TypeError("labels are missing: give one for each row of the embeddings")
        given, parts = _opened(embeddings)
        gallery, gallery_parts = _opened(gallery_embeddings)
        matrix = _as_matrix(given, "embeddings")
        names = as_labels(labels, len(matrix), "labels")
        if (gallery_embeddings is None) != (gallery_labels is None):
            raise ValueError("gallery_embeddings and gallery_labels belong together: give both")
        if gallery_embeddings is None or gallery_labels is None:
            if self_indices is not None:
                raise ValueError("self_indices point into a gallery: give gallery_embeddings too")
            known, codes = np.unique(names, return_inverse=True)
            unit = _unit(matrix, "embeddings")
            return cls(embeddings=unit, codes=codes, class_labels=known, parts=parts)
        other = _as_matrix(gallery, "gallery_embeddings")
        other_names = as_labels(gallery_labels, len(other), "gallery_labels")
        _check_sides(matrix, names, other, other_names)
        known, codes = np.unique(np.concatenate((names, other_names)), return_inverse=True)
        codes, gallery_codes = codes[: len(names)], codes[len(names) :]
        return cls(
            embeddings=_unit(matrix, "embeddings"),
            codes=codes,
            class_labels=known,
            gallery_embeddings=_unit(other, "gallery_embeddings"),
            gallery_codes=gallery_codes,
            self_indices=_as_self_indices(self_indices, codes, gallery_codes),
            parts=parts,
            gallery_parts=gallery_parts,
        )

    @property
    def searches_itself(self) -> bool:
        """Whether the queries are searched among themselves, without a gallery."""
        return self.gallery_embeddings is None

    @property
    def searched(self) -> Embeddings:
        """Unit vectors of the images that are searched. (G, D)"""
        return self.embeddings if self.gallery_embeddings is None else self.gallery_embeddings

    @property
    def searched_codes(self) -> Codes:
        """Class of each image that is searched. (G,)"""
        return self.codes if self.gallery_codes is None else self.gallery_codes

    @property
    def own_indices(self) -> Codes:
        """Index of each query among the images that are searched, -1 where it is not one. (Q,)"""
        if self.searches_itself:
            return np.arange(len(self.codes))
        if self.self_indices is None:
            return np.full(len(self.codes), -1)
        return self.self_indices

    @property
    def query_outputs(self) -> Outputs:
        """The queries as a reranker takes them."""
        return Outputs(torch.from_numpy(self.embeddings), self.parts)

    @property
    def searched_outputs(self) -> Outputs:
        """The images that are searched as a reranker takes them."""
        parts = self.parts if self.searches_itself else self.gallery_parts
        return Outputs(torch.from_numpy(self.searched), parts)

    def of_classes(self, chosen: NDArray[np.bool_]) -> "QueryGallery":
        """Only the images of some classes, on both sides.

        Args:
            chosen: Whether each class stays. (C,)
        """
        here = chosen[self.codes]
        part = replace(
            self,
            embeddings=self.embeddings[here],
            codes=self.codes[here],
            parts=_rows_of(self.parts, here),
        )
        if self.gallery_embeddings is None or self.gallery_codes is None:
            return part
        there = chosen[self.gallery_codes]
        own = self.own_indices[here]
        position = np.cumsum(there) - 1  # a query and itself are of one class: both stay or go
        return replace(
            part,
            gallery_embeddings=self.gallery_embeddings[there],
            gallery_codes=self.gallery_codes[there],
            self_indices=np.where(own >= 0, position[own], -1),
            gallery_parts=_rows_of(self.gallery_parts, there),
        )

    def sorted_by_class(self) -> "tuple[QueryGallery, Codes]":
        """The same with both sides ascending by class, and where each query stood before. (Q,)

        Each class is then a range of either side. The order within a class stays.
        """
        order = np.argsort(self.codes, kind="stable")
        moved = replace(
            self,
            embeddings=self.embeddings[order],
            codes=self.codes[order],
            parts=_rows_of(self.parts, order),
        )
        if self.gallery_embeddings is None or self.gallery_codes is None:
            return moved, order
        gallery_order = np.argsort(self.gallery_codes, kind="stable")
        position = np.empty(len(gallery_order) + 1, dtype=np.int64)
        position[gallery_order], position[-1] = np.arange(len(gallery_order)), -1  # -1 stays -1
        moved = replace(
            moved,
            gallery_embeddings=self.gallery_embeddings[gallery_order],
            gallery_codes=self.gallery_codes[gallery_order],
            self_indices=position[self.own_indices[order]],
            gallery_parts=_rows_of(self.gallery_parts, gallery_order),
        )
        return moved, order


def as_unit(embeddings: Matrix, name: str) -> Embeddings:
    """Embeddings in their order, divided by their length. (N, D)

    Args:
        embeddings: Array or tensor; rows of zeros or non-finite numbers are refused. (N, D)
        name: The argument's name, for the error.
    """
    return _unit(_as_matrix(embeddings, name), name)


def as_labels(labels: Labels, rows: int, name: str) -> NDArray[Any]:
    """Labels as an array of integers or strings. (N,)

    Args:
        labels: One for each row of the embeddings. (N,)
        rows: Number of rows of the embeddings, N.
        name: The argument's name, for the error.
    """
    array = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if array.ndim != 1 or len(array) != rows:
        raise ValueError(
            f"{name} must have shape ({rows},), one label for each row of the embeddings, "
            f"got {array.shape}"
        )
    if array.dtype.kind not in "biuU":
        raise TypeError(f"{name} must be integers or strings, got {array.dtype}")
    return array


def _opened(given: Any) -> tuple[Any, Mapping[str, Tensor]]:
    """Embeddings and parts of what may be `Outputs`."""
    if not isinstance(given, Outputs):
        return given, {}
    return given.embeddings, {name: part.detach().cpu() for name, part in given.parts.items()}


def _rows_of(parts: Mapping[str, Tensor], rows: NDArray[Any]) -> dict[str, Tensor]:
    return {name: part[torch.from_numpy(rows)] for name, part in parts.items()}


def _as_matrix(embeddings: Matrix, name: str) -> NDArray[Any]:
    """The embeddings as an array, not copied where numpy can read them in place."""
    if isinstance(embeddings, Tensor):
        embeddings, floating = embeddings.detach(), embeddings.is_floating_point()
    elif isinstance(embeddings, np.ndarray):
        floating = embeddings.dtype.kind == "f" and embeddings.dtype.itemsize <= 8
    else:
        raise TypeError(f"{name} must be an array or a tensor, got {type(embeddings).__name__}")
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(f"{name} must have shape (images, dim), got {tuple(embeddings.shape)}")
    if not floating:
        raise TypeError(f"{name} must hold floating point numbers, got {embeddings.dtype}")
    if isinstance(embeddings, Tensor):
        known = embeddings.dtype in {torch.float16, torch.float32, torch.float64}
        return (embeddings if known else embeddings.float()).cpu().numpy()
    return embeddings


def _check_sides(
    matrix: NDArray[Any], names: NDArray[Any], other: NDArray[Any], other_names: NDArray[Any]
) -> None:
    if matrix.shape[1] != other.shape[1]:
        raise ValueError(
            f"embeddings have {matrix.shape[1]} dimensions, gallery_embeddings {other.shape[1]}"
        )
    if (names.dtype.kind == "U") != (other_names.dtype.kind == "U"):
        raise TypeError("labels and gallery_labels must both be integers or both be strings")


def _as_self_indices(indices: Labels | None, codes: Codes, gallery_codes: Codes) -> Codes | None:
    if indices is None:
        return None
    own = as_labels(indices, len(codes), "self_indices")
    if own.dtype.kind not in "iu" or own.min() < -1 or own.max() >= len(gallery_codes):
        raise ValueError(
            f"self_indices must be indices into the {len(gallery_codes)} images of the gallery, "
            "or -1"
        )
    own = own.astype(np.int64)
    wrong = np.flatnonzero((own >= 0) & (gallery_codes[own] != codes))
    if len(wrong):
        raise ValueError(
            f"self_indices: query {wrong[0]} has another label than the image of the gallery that "
            "it is said to be"
        )
    return own


def _unit(matrix: NDArray[Any], name: str) -> Embeddings:
    """Rows divided by their length; zero and non-finite rows are refused by their numbers."""
    unit = np.empty(matrix.shape, dtype=np.float32)
    largest = np.empty((len(matrix), 1))
    for start in range(0, len(matrix), CHUNK):
        part = slice(start, start + CHUNK)
        rows = matrix[part].astype(np.float64, order="C")
        # Divided by their largest number first: squares then neither overflow nor vanish.
        largest[part] = np.abs(rows).max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):  # bad rows are named below
            rows /= largest[part]
            rows /= np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        unit[part] = rows
    _refuse(~np.isfinite(largest[:, 0]), name, "NaN or infinity")
    _refuse(largest[:, 0] == 0.0, name, "only zeros, which have no direction,")
    return unit


def _refuse(is_bad: NDArray[np.bool_], name: str, what: str) -> None:
    bad = np.flatnonzero(is_bad)
    if len(bad):
        shown = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise ValueError(f"{name} holds {what} in {len(bad)} of {len(is_bad)} rows: {shown}")
