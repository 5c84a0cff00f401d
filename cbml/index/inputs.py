"""What is asked of vectors and labels, and the error that says which argument is wrong."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Labels", "Matrix", "as_labels", "as_matrix", "read_sides", "unit_rows"]

Matrix = NDArray[Any] | Tensor
Labels = NDArray[Any] | Tensor | Sequence[int] | Sequence[str]
Side = tuple[NDArray[Any], NDArray[Any]]  # rows and their class names

# Rows that are widened at a time: few enough to stay in the processor's cache.
CHUNK = 512


def as_matrix(embeddings: Matrix, name: str) -> NDArray[Any]:
    """The embeddings as an array, not copied where numpy can read them in place.

    Args:
        embeddings: one row per picture. (N, D)
        name: the argument's name, for the error.
    """
    if isinstance(embeddings, Tensor):
        embeddings, floating = embeddings.detach(), embeddings.is_floating_point()
    elif isinstance(embeddings, np.ndarray):
        floating = embeddings.dtype.kind == "f" and embeddings.dtype.itemsize <= 8
    else:
        raise TypeError(f"{name} must be an array or a tensor, got {type(embeddings).__name__}")
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(f"{name} must have shape (pictures, dim), got {tuple(embeddings.shape)}")
    if not floating:
        raise TypeError(f"{name} must hold floating point numbers, got {embeddings.dtype}")
    if isinstance(embeddings, Tensor):
        known = embeddings.dtype in {torch.float16, torch.float32, torch.float64}
        return (embeddings if known else embeddings.float()).cpu().numpy()
    return embeddings


def as_labels(labels: Labels, rows: int, name: str) -> NDArray[Any]:
    """The labels as an array of integers or strings.

    Args:
        labels: one for each row of the embeddings. (N,)
        rows: how many rows the embeddings have.
        name: the argument's name, for the error.
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


def read_sides(
    embeddings: Matrix,
    labels: Labels,
    gallery_embeddings: Matrix | None,
    gallery_labels: Labels | None,
) -> tuple[Side, Side | None]:
    """Rows and class names of one set, and of the gallery where there is one, if they fit.

    Args:
        embeddings: one row per picture. (N, D)
        labels: integers or strings, one per row. (N,)
        gallery_embeddings: the other side, where it is not the same set. (M, D)
        gallery_labels: one per row of the gallery. (M,)
    """
    matrix = as_matrix(embeddings, "embeddings")
    names = as_labels(labels, len(matrix), "labels")
    if (gallery_embeddings is None) != (gallery_labels is None):
        raise ValueError("gallery_embeddings and gallery_labels belong together: give both")
    if gallery_embeddings is None or gallery_labels is None:
        return (matrix, names), None
    other = as_matrix(gallery_embeddings, "gallery_embeddings")
    other_names = as_labels(gallery_labels, len(other), "gallery_labels")
    if matrix.shape[1] != other.shape[1]:
        raise ValueError(
            f"embeddings have {matrix.shape[1]} dimensions, gallery_embeddings {other.shape[1]}"
        )
    if (names.dtype.kind == "U") != (other_names.dtype.kind == "U"):
        raise TypeError("labels and gallery_labels must both be integers or both be strings")
    return (matrix, names), (other, other_names)


def unit_rows(matrix: NDArray[Any], order: NDArray[np.int64], name: str) -> Tensor:
    """The rows in another order, divided by their length; zero and non-finite rows are refused.

    Args:
        matrix: one row per picture. (N, D)
        order: which row comes where. (N,)
        name: the argument's name, for the error.
    """
    unit = np.empty(matrix.shape, dtype=np.float32)
    largest = np.empty((len(order), 1))
    for start in range(0, len(order), CHUNK):
        part = slice(start, start + CHUNK)
        rows = matrix[order[part]].astype(np.float64)
        # Divided by their largest number first: squares then neither overflow nor vanish.
        largest[part] = np.abs(rows).max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):  # bad rows are named below
            rows /= largest[part]
            rows /= np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        unit[part] = rows
    _refuse(order[~np.isfinite(largest[:, 0])], len(order), name, "NaN or infinity")
    zeros = "only zeros, which have no direction,"
    _refuse(order[largest[:, 0] == 0.0], len(order), name, zeros)
    return torch.from_numpy(unit)


def _refuse(bad: NDArray[np.int64], total: int, name: str, what: str) -> None:
    if len(bad):
        shown = ", ".join(map(str, np.sort(bad)[:10])) + (", ..." if len(bad) > 10 else "")
        raise ValueError(f"{name} holds {what} in {len(bad)} of {total} rows: {shown}")
