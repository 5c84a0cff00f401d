"""What every loss asks of its inputs, and the error that says which argument is wrong."""

import torch
from torch import Tensor

__all__ = ["as_labels", "as_matrix", "as_pairs", "unit_rows"]


def as_matrix(embeddings: Tensor, name: str) -> Tensor:
    """The embeddings as a float32 or float64 matrix; half precision is widened.

    Args:
        embeddings: one row per picture. (B, D)
        name: the argument's name, for the error.
    """
    if not isinstance(embeddings, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(embeddings).__name__}")
    if embeddings.dim() != 2 or embeddings.shape[1] == 0:
        raise ValueError(f"{name} must have shape (batch, dim), got {tuple(embeddings.shape)}")
    if not embeddings.is_floating_point():
        raise TypeError(f"{name} must hold floating point numbers, got {embeddings.dtype}")
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def as_labels(labels: Tensor, matrix: Tensor, name: str) -> Tensor:
    """The labels as integers beside the matrix they belong to.

    Args:
        labels: one integer per row. (B,)
        matrix: the embeddings. (B, D)
        name: the argument's name, for the error.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(labels).__name__}")
    if labels.dim() != 1 or len(labels) != len(matrix):
        raise ValueError(
            f"{name} must have shape ({len(matrix)},), one label for each row of the embeddings, "
            f"got {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"{name} must be integers, got {labels.dtype}")
    return labels.detach().to(device=matrix.device, dtype=torch.int64)


def unit_rows(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Rows divided by their length, and the lengths; zero and non-finite rows are refused.

    Args:
        matrix: float32 or float64. (B, D)
        name: the argument's name, for the error.
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


def as_pairs(
    indices_tuple: tuple[Tensor, ...], rows: int, columns: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Anchors and positives, anchors and negatives, from the pairs or triplets of a miner.

    Args:
        indices_tuple: (anchor, positive, anchor, negative) or (anchor, positive, negative).
        rows: number of embeddings.
        columns: number of references.
    """
    if not isinstance(indices_tuple, tuple | list) or len(indices_tuple) not in {3, 4}:
        raise ValueError(
            "indices_tuple must hold 3 tensors (anchor, positive, negative) or 4 "
            "(anchor, positive, anchor, negative)"
        )
    if len(indices_tuple) == 3:
        anchors, positives, negatives = indices_tuple
        pairs = (anchors, positives, anchors, negatives)
    else:
        pairs = tuple(indices_tuple)  # type: ignore[assignment]
    places = ("anchors of positives", "positives", "anchors of negatives", "negatives")
    checked = []
    for name, index, size in zip(places, pairs, (rows, columns, rows, columns), strict=True):
        integers = isinstance(index, Tensor) and not (
            index.is_floating_point() or index.is_complex() or index.dtype == torch.bool
        )
        if not integers or index.dim() != 1:
            raise TypeError(f"indices_tuple: the {name} must be a tensor of integers, one axis")
        if len(index) and not (int(index.min()) >= 0 and int(index.max()) < size):
            raise ValueError(f"indices_tuple: the {name} hold an index outside 0 ... {size - 1}")
        checked.append(index.to(torch.int64))
    if len(checked[0]) != len(checked[1]) or len(checked[2]) != len(checked[3]):
        raise ValueError("indices_tuple: anchors and partners differ in length")
    return checked[0], checked[1], checked[2], checked[3]
