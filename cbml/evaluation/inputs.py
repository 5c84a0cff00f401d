"""What an evaluation asks of its inputs, and the error that says which argument is wrong."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Labels", "Matrix", "as_cutoffs", "as_labels", "as_matrix", "unit_rows"]

Matrix = NDArray[Any] | Tensor
Labels = NDArray[Any] | Tensor | Sequence[int] | Sequence[str]

# Rows that are widened at a time, so that no second copy of the embeddings exists.
CHUNK = 4096


def as_matrix(embeddings: Matrix, name: str) -> Matrix:
    """The embeddings as they are, after a look at their type and shape.

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


def as_cutoffs(recall_at: Iterable[int]) -> list[int]:
    """The distinct K of Recall@K, ascending.

    Args:
        recall_at: positive whole numbers.
    """
    cutoffs = list(recall_at)
    for cutoff in cutoffs:
        if not isinstance(cutoff, int | np.integer) or isinstance(cutoff, bool) or cutoff < 1:
            raise ValueError(f"recall_at must be positive whole numbers, got {cutoff!r}")
    return sorted({int(cutoff) for cutoff in cutoffs})


def unit_rows(embeddings: Matrix, order: NDArray[np.int64], name: str) -> Tensor:
    """The rows in another order, divided by their length; zero and non-finite rows are refused.

    Args:
        embeddings: one row per picture. (N, D)
        order: which row comes where. (N,)
        name: the argument's name, for the error.
    """
    unit = torch.empty(tuple(embeddings.shape), dtype=torch.float32)
    faults: dict[str, list[NDArray[np.int64]]] = {}
    for start in range(0, len(order), CHUNK):
        places = order[start : start + CHUNK]
        rows = _taken(embeddings, places)
        # Divided by their largest number first: squares then neither overflow nor vanish.
        largest = rows.abs().amax(dim=1, keepdim=True)  # (C, 1)
        finite = largest[:, 0].isfinite()
        for what, bad in (
            ("NaN or infinity", ~finite),
            ("only zeros, which have no direction,", largest[:, 0] == 0.0),
        ):
            if bool(bad.any()):
                faults.setdefault(what, []).append(places[bad.numpy()])
        rows = rows / largest
        unit[start : start + CHUNK] = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    for what, parts in faults.items():
        bad_rows = np.sort(np.concatenate(parts)).tolist()
        shown = ", ".join(map(str, bad_rows[:10])) + (", ..." if len(bad_rows) > 10 else "")
        raise ValueError(f"{name} holds {what} in {len(bad_rows)} of {len(order)} rows: {shown}")
    return unit


def _taken(embeddings: Matrix, places: NDArray[np.int64]) -> Tensor:
    """Some rows as a new float32 or float64 tensor."""
    if isinstance(embeddings, Tensor):
        rows = embeddings[torch.from_numpy(places).to(embeddings.device)].cpu()
    else:
        rows = torch.from_numpy(np.array(embeddings[places], dtype=_native(embeddings.dtype)))
    return rows if rows.dtype == torch.float64 else rows.float()


def _native(kind: np.dtype[Any]) -> np.dtype[Any]:
    return kind.newbyteorder("=")
