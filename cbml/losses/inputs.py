"""The call of every loss, and the checks that name the argument which is wrong."""

from typing import Any

import numpy
import torch
from torch import Tensor, nn

from cbml.losses.adapters import name_adapters

name_adapters()  # here, so that making a loss stays free of imports, also in a compiled function


class MetricLoss(nn.Module):
    """The call that all losses here share."""

    #: Fewest classes in a batch, and images of each, that it can learn from.
    smallest_batch: tuple[int, int] = (1, 1)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of one batch, one number.

        Args:
            embeddings: One row per image; their direction counts, not their length. (B, D)
            labels: One integer per row. (B,)
            indices_tuple: Pairs (a, p, a, n) or triplets (a, p, n) of a miner, instead of all.
            ref_emb: Embeddings to compare with instead of the batch itself. (R, D)
            ref_labels: Labels of `ref_emb`. (R,)
        """
        raise NotImplementedError

    def mine(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> tuple[Tensor, ...] | None:
        """The pairs or triplets that the loss itself chooses; None where it takes all.

        Args:
            embeddings: One row per image. (B, D)
            labels: One integer per row. (B,)
            indices_tuple: The pairs among which to choose, instead of all.
            ref_emb: Embeddings to compare with instead of the batch itself. (R, D)
            ref_labels: Labels of `ref_emb`. (R,)
        """
        return None


def as_matrix(embeddings: Tensor, name: str) -> Tensor:
    """The embeddings as a float32 or float64 matrix; half precision is widened.

    Args:
        embeddings: One row per image, also as a numpy array or lists. (B, D)
    """
    embeddings = _as_tensor(embeddings, name)
    if embeddings.dim() != 2 or embeddings.shape[1] == 0:
        raise ValueError(f"{name} must have shape (batch, dim), got {tuple(embeddings.shape)}")
    if not embeddings.is_floating_point():
        raise TypeError(f"{name} must hold floating point numbers, got {embeddings.dtype}")
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def as_labels(labels: Tensor, matrix: Tensor, name: str) -> Tensor:
    """The labels as integers beside the matrix they belong to."""
    labels = _as_tensor(labels, name)
    if labels.dim() != 1 or len(labels) != len(matrix):
        raise ValueError(
            f"{name} must have shape ({len(matrix)},), one label for each row of the embeddings, "
            f"got {tuple(labels.shape)}"
        )
    if len(labels) and (labels.is_floating_point() or labels.is_complex()):
        raise TypeError(f"{name} must be integers, got {labels.dtype}")
    return labels.detach().to(device=matrix.device, dtype=torch.int64)


def _as_tensor(values: Any, name: str) -> Tensor:
    """What a caller gave as a tensor, or the line that makes one of it."""
    if isinstance(values, Tensor):
        return values
    if not isinstance(values, list | tuple | numpy.ndarray):
        raise TypeError(
            f"{name} must be a tensor, a numpy array or a list, got {type(values).__name__}"
        )
    if len(values) and isinstance(values[0], Tensor):
        raise TypeError(f"{name} is a list of tensors; use torch.stack({name})")
    try:
        array = numpy.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must hold numbers in rows of one length") from None
    if array.dtype.kind in "US" or (array.dtype == object and isinstance(array.flat[0], str)):
        raise TypeError(
            f"{name} are strings: number them once for the whole dataset, with {name} = "
            f"torch.from_numpy(numpy.unique(names, return_inverse=True)[1])"
        )
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, got an array of {array.dtype}")
    tensor = torch.as_tensor(array)
    # Python's floats are doubles by accident; an array's type is somebody's choice.
    by_accident = tensor.is_floating_point() and not isinstance(values, numpy.ndarray)
    return tensor.to(torch.get_default_dtype()) if by_accident else tensor


def without_self_references(
    embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The references, or none where they are the batch itself.

    pytorch-metric-learning hands the batch over as its own reference when there is none. Taken
    literally, each image would be its own positive.
    """
    if (ref_emb is None) != (ref_labels is None):
        missing = "ref_emb" if ref_emb is None else "ref_labels"
        raise ValueError(f"ref_emb and ref_labels go together: {missing} is missing")
    if ref_emb is None or ref_emb is not embeddings:
        return ref_emb, ref_labels
    # Comparing values would break a traced graph in two; the compiler trusts the caller here.
    if ref_labels is not labels and not torch.compiler.is_compiling():
        own, other = _as_tensor(labels, "labels"), _as_tensor(ref_labels, "ref_labels")
        if not torch.equal(own.cpu(), other.cpu()):
            raise ValueError("ref_emb is embeddings itself, but ref_labels differ from labels")
    return None, None


def as_references(ref_emb: Tensor, ref_labels: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """References as the matrix they are compared with, in its type and place. (R, D) and (R,)"""
    columns = as_matrix(ref_emb, "ref_emb").to(device=matrix.device, dtype=matrix.dtype)
    if columns.shape[1] != matrix.shape[1]:
        raise ValueError(
            f"ref_emb has {columns.shape[1]} dimensions, embeddings has {matrix.shape[1]}"
        )
    return columns, as_labels(ref_labels, columns, "ref_labels")


def unit_rows(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Rows divided by their length, and the lengths; zero and non-finite rows are refused.

    Args:
        matrix: float32 or float64. (B, D)
    """
    lengths = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)  # (B, 1)
    limits = torch.finfo(matrix.dtype)
    # Below this length the squares lose digits or vanish.
    shortest = (limits.tiny / limits.eps) ** 0.5
    if not bool((lengths.isfinite() & (lengths > shortest)).all()):
        return _unit_rows_of_any_size(matrix, name)
    return matrix / lengths, lengths


def _unit_rows_of_any_size(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The same where squares overflow or vanish, or the error that names the bad rows."""
    _refuse_rows(~matrix.isfinite().all(dim=1), name, "NaN or infinity")
    largest = matrix.abs().amax(dim=1, keepdim=True)  # (B, 1)
    _refuse_rows(largest[:, 0] == 0.0, name, "only zeros, which have no direction")
    scaled = matrix / largest
    lengths = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    # Beyond the largest number the length is cut: its gradient is zero at that scale anyway.
    return scaled / lengths, (lengths * largest).clamp(max=torch.finfo(matrix.dtype).max)


def _refuse_rows(bad: Tensor, name: str, what: str) -> None:
    rows = bad.nonzero()[:, 0].tolist()
    if rows:
        shown = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
        raise ValueError(f"{name} holds {what} in {len(rows)} of {len(bad)} rows: {shown}")


def as_pairs(indices_tuple: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs, from the pairs or triplets of a miner. (2, P) and (2, N)"""
    if not isinstance(indices_tuple, tuple | list) or len(indices_tuple) not in {3, 4}:
        raise ValueError(
            "indices_tuple must hold 3 tensors (anchor, positive, negative) or 4 "
            "(anchor, positive, anchor, negative)"
        )
    parts = list(indices_tuple)
    if len(parts) == 3:
        parts.insert(2, parts[0])
    for name, index in zip(_PLACES, parts, strict=True):
        integers = isinstance(index, Tensor) and not (
            index.is_floating_point() or index.is_complex() or index.dtype == torch.bool
        )
        if not integers or index.dim() != 1:
            raise TypeError(f"indices_tuple: the {name} must be a tensor of integers, one axis")
    if len(parts[0]) != len(parts[1]) or len(parts[2]) != len(parts[3]):
        raise ValueError("indices_tuple: anchors and partners differ in length")
    anchors, positives, others, negatives = (part.detach().to(torch.int64) for part in parts)
    return torch.stack((anchors, positives)), torch.stack((others, negatives))


def check_range(positives: Tensor, negatives: Tensor, rows: int, columns: int) -> None:
    """Refuse pairs of images that do not exist."""
    parts = (*positives, *negatives)
    for name, index, size in zip(_PLACES, parts, (rows, columns, rows, columns), strict=True):
        if len(index) and not (int(index.min()) >= 0 and int(index.max()) < size):
            raise ValueError(f"indices_tuple: the {name} hold an index outside 0 ... {size - 1}")


_PLACES = ("anchors of positives", "positives", "anchors of negatives", "negatives")
