"""What is asked of vectors and labels, and the error that says which argument is wrong."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Labels", "Matrix", "as_labels", "as_matrix", "unit_rows"]

Matrix = NDArray[Any] | Tensor
Labels = NDArray[Any] | Tensor | Sequence[int] | Sequence[str]

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
