"""What all rivals share: one call, checked inputs, unit vectors in float32, masks by index."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cbml.losses.inputs import as_labels, as_matrix, as_pairs, unit_rows

__all__ = [
    "Batch",
    "Rival",
    "check_classes",
    "check_width",
    "distances",
    "masked_logsumexp",
    "masked_mean",
]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A checked batch: anchors in the rows, references in the columns.

    Args:
        anchors: embeddings of the rows. (B, D)
        labels: of the anchors. (B,)
        columns: embeddings of the columns; the anchors themselves without references. (R, D)
        column_labels: of the columns. (R,)
        indices: the pairs or triplets as the caller gave them, or None.
    """

    anchors: Tensor
    labels: Tensor
    columns: Tensor
    column_labels: Tensor
    indices: tuple[Tensor, ...] | None

    @property
    def is_self(self) -> bool:
        """Whether rows and columns are the same pictures."""
        return self.columns is self.anchors

    def similarity(self) -> Tensor:
        """Inner products of rows and columns, cosines for unit vectors. (B, R)"""
        return self.anchors @ self.columns.T

    def masks(self) -> tuple[Tensor, Tensor]:
        """Which pairs are positive and which negative: as listed, else by label. (B, R) twice"""
        same = self.labels[:, None] == self.column_labels[None, :]
        if self.indices is None:
            negative = ~same
            if self.is_self:
                same.fill_diagonal_(False)
            return same, negative
        pairs = as_pairs(self.indices, len(self.anchors), len(self.columns))
        positive, negative = torch.zeros_like(same), torch.zeros_like(same)
        positive[pairs[0].to(same.device), pairs[1].to(same.device)] = True
        negative[pairs[2].to(same.device), pairs[3].to(same.device)] = True
        return positive, negative


class Rival(nn.Module):
    """A loss of another paper behind the one call that all losses here share.

    The loss is computed in float32 (float64 for float64 embeddings) also under autocast, on
    embeddings divided by their length unless the class says otherwise. `learning_rate_factor` is
    what a training loop multiplies its learning rate with for the loss's own parameters.
    """

    learning_rate_factor: float = 1.0

    _unit_rows: ClassVar[bool] = True
    _takes_indices: ClassVar[bool] = True
    _takes_references: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, one number.

        Args:
            embeddings: one row per picture. (B, D)
            labels: one integer per row. (B,)
            indices_tuple: pairs or triplets of a miner, taken instead of the loss's own choice.
            ref_emb: embeddings to compare with instead of the batch itself. (R, D)
            ref_labels: labels of `ref_emb`. (R,)
        """
        if indices_tuple is not None and not self._takes_indices:
            raise ValueError(f"{type(self).__name__} takes no indices_tuple: it uses all it sees")
        if ref_emb is not None and not self._takes_references:
            raise ValueError(f"{type(self).__name__} takes no ref_emb")
        if (ref_emb is None) != (ref_labels is None):
            raise ValueError("ref_emb and ref_labels go together: give both or neither")
        anchors = as_matrix(embeddings, "embeddings")
        with torch.autocast(anchors.device.type, enabled=False):
            anchors = self._checked_rows(anchors, "embeddings")
            labels = as_labels(labels, anchors, "labels")
            columns, column_labels = anchors, labels
            if ref_emb is not None and ref_labels is not None:
                columns, column_labels = self._checked_references(ref_emb, ref_labels, anchors)
            if not len(anchors) or not len(columns):
                return anchors.sum() * 0.0  # nothing to compare: zero, with its graph
            if indices_tuple is not None:
                as_pairs(indices_tuple, len(anchors), len(columns))
                indices_tuple = tuple(index.to(anchors.device) for index in indices_tuple)
            batch = Batch(
                anchors=anchors,
                labels=labels,
                columns=columns,
                column_labels=column_labels,
                indices=indices_tuple,
            )
            return self._value(batch)

    def _checked_references(
        self, ref_emb: Tensor, ref_labels: Tensor, anchors: Tensor
    ) -> tuple[Tensor, Tensor]:
        columns = self._checked_rows(as_matrix(ref_emb, "ref_emb"), "ref_emb")
        if columns.shape[1] != anchors.shape[1]:
            raise ValueError(
                f"ref_emb has {columns.shape[1]} columns, embeddings {anchors.shape[1]}"
            )
        columns = columns.to(anchors.device, anchors.dtype)
        return columns, as_labels(ref_labels, columns, "ref_labels")

    def _checked_rows(self, matrix: Tensor, name: str) -> Tensor:
        units = unit_rows(matrix, name)[0]  # refuses rows that have no direction
        return units if self._unit_rows else matrix

    def _value(self, batch: Batch) -> Tensor:
        raise NotImplementedError


def check_classes(batch: Batch, num_classes: int) -> None:
    """Refuse labels that have no proxy.

    Args:
        batch: whose labels to look at.
        num_classes: labels must be 0 ... num_classes - 1.
    """
    outside = (batch.labels < 0) | (batch.labels >= num_classes)
    if bool(outside.any()):
        raise ValueError(
            f"labels must be within 0 ... {num_classes - 1} (num_classes is {num_classes}), "
            f"got {sorted(set(batch.labels[outside].tolist()))[:10]}"
        )


def check_width(batch: Batch, embedding_size: int) -> None:
    """Refuse embeddings that are not as wide as what they are compared with.

    Args:
        batch: whose embeddings to look at.
        embedding_size: the width that the loss was made for.
    """
    width = batch.anchors.shape[1]
    if width != embedding_size:
        raise ValueError(f"embeddings have {width} columns, but embedding_size is {embedding_size}")


def distances(similarity: Tensor) -> Tensor:
    """Euclidean distances of unit vectors, sqrt(2 - 2 s), with a finite gradient at zero.

    Args:
        similarity: cosines, which rounding may have pushed beyond one.
    """
    squares = 2.0 - 2.0 * similarity
    return squares.clamp(min=torch.finfo(similarity.dtype).eps).sqrt()


def masked_logsumexp(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log Σ exp over the kept entries; the lowest finite number where none is kept.

    Minus infinity would be the value there, but its gradient is not a number.

    Args:
        values: the exponents.
        mask: which entries to keep.
        dim: the dimension to sum over.
    """
    return values.masked_fill(~mask, torch.finfo(values.dtype).min).logsumexp(dim)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the kept entries; zero, with its graph, where none is kept.

    Args:
        values: of which to take the mean.
        mask: which entries to keep.
    """
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
