"""What all baselines share: one call, checked inputs, unit vectors in float32, masks by index."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cbml.losses.inputs import (
    MetricLoss,
    as_labels,
    as_matrix,
    as_pairs,
    as_references,
    check_range,
    unit_rows,
    without_self_references,
)
from cbml.losses.options import check_count, check_number


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A checked batch: anchors in the rows, references in the columns.

    Args:
        anchors: Embeddings of the rows. (B, D)
        labels: Labels of the anchors. (B,)
        columns: Embeddings of the columns; the anchors themselves without references. (R, D)
        column_labels: Labels of the columns. (R,)
        indices: The pairs or triplets as the caller gave them, or None.
        own_columns: Where each anchor finds its own copy among the columns, which is no pair; None
            where there is none, or where rows and columns are the same images. (B,)
    """

    anchors: Tensor
    labels: Tensor
    columns: Tensor
    column_labels: Tensor
    indices: tuple[Tensor, ...] | None = None
    own_columns: Tensor | None = None

    @property
    def is_self(self) -> bool:
        """Whether rows and columns are the same images."""
        return self.columns is self.anchors

    def similarity(self) -> Tensor:
        """Inner products of rows and columns, cosines for unit vectors. (B, R)"""
        return self.anchors @ self.columns.T

    def distances(self) -> Tensor:
        """Euclidean distances of rows and columns of any length. (B, R)"""
        rows, columns = (part.square().sum(dim=1) for part in (self.anchors, self.columns))
        squares = rows[:, None] + columns[None, :] - 2.0 * self.similarity()
        return squares.clamp(min=torch.finfo(squares.dtype).eps).sqrt()

    def masks(self) -> tuple[Tensor, Tensor]:
        """Which pairs are positive and which negative: as listed, else by label. (B, R) twice"""
        same = self.labels[:, None] == self.column_labels[None, :]
        if self.indices is None:
            negative = ~same
            if self.is_self:
                same.fill_diagonal_(False)
            elif self.own_columns is not None:
                same.scatter_(1, self.own_columns[:, None], False)
            return same, negative
        positive, negative = torch.zeros_like(same), torch.zeros_like(same)
        for mask, pairs in zip((positive, negative), as_pairs(self.indices), strict=True):
            mask[pairs[0], pairs[1]] = True
        return positive, negative


class BaselineLoss(MetricLoss):
    """A loss of another paper behind the one call that all losses here share.

    The loss is computed in float32 (float64 for float64 embeddings) also under autocast, on
    embeddings divided by their length unless the class says otherwise. `learning_rate_factor` is
    what a training loop multiplies its learning rate with for the loss's own parameters.
    """

    learning_rate_factor: float = 1.0
    unit_rows: bool = True
    #: Fewest classes in a batch, and images of each, that it can learn from.
    smallest_batch: tuple[int, int] = (2, 2)

    _takes_indices: ClassVar[bool] = True
    _takes_references: ClassVar[bool] = True

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, one number."""
        with _full_precision(embeddings):
            batch = self._batch(embeddings, labels, indices_tuple, ref_emb, ref_labels)
            if not len(batch.anchors) or not len(batch.columns):
                return batch.anchors.sum() * 0.0  # nothing to compare: zero, with its graph
            return self._value(batch)

    @torch.no_grad()
    def mine(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> tuple[Tensor, ...] | None:
        """The pairs or triplets that the loss itself chooses; None where it takes all."""
        with _full_precision(embeddings):
            batch = self._batch(embeddings, labels, indices_tuple, ref_emb, ref_labels)
            return self._mined(batch) if len(batch.anchors) and len(batch.columns) else None

    def _batch(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
    ) -> Batch:
        """The checked arguments of a call."""
        ref_emb, ref_labels = without_self_references(embeddings, labels, ref_emb, ref_labels)
        if indices_tuple is not None and not self._takes_indices:
            raise ValueError(f"{type(self).__name__} takes no indices_tuple: it uses all it sees")
        if ref_emb is not None and not self._takes_references:
            raise ValueError(f"{type(self).__name__} takes no ref_emb")
        anchors = self._checked_rows(as_matrix(embeddings, "embeddings"), "embeddings")
        labels = as_labels(labels, anchors, "labels")
        columns, column_labels = anchors, labels
        if ref_emb is not None and ref_labels is not None:
            columns, column_labels = as_references(ref_emb, ref_labels, anchors)
            columns = self._checked_rows(columns, "ref_emb")
        if indices_tuple is not None:
            check_range(*as_pairs(indices_tuple), len(anchors), len(columns))
            indices_tuple = tuple(index.to(anchors.device) for index in indices_tuple)
        return Batch(
            anchors=anchors,
            labels=labels,
            columns=columns,
            column_labels=column_labels,
            indices=indices_tuple,
        )

    def _checked_rows(self, matrix: Tensor, name: str) -> Tensor:
        units = unit_rows(matrix, name)[0]  # refuses rows that have no direction
        return units if self.unit_rows else matrix

    def _mined(self, batch: Batch) -> tuple[Tensor, ...] | None:
        """The choice of a loss that has a miner of its own, among the pairs of the masks."""
        return None

    @torch.no_grad()
    def _chosen(self, batch: Batch) -> tuple[Tensor, ...] | None:
        """The pairs that the caller lists, else the loss's own choice."""
        return self._mined(batch) if batch.indices is None else batch.indices

    def _value(self, batch: Batch) -> Tensor:
        raise NotImplementedError


class ProxyLoss(BaselineLoss):
    """A loss that compares embeddings with learned vectors of the classes, not with each other.

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        learning_rate_factor: Factor on the learning rate of the learned vectors.
        seed: Random seed of the first vectors.
    """

    smallest_batch = (1, 1)

    _takes_indices = False
    _takes_references = False

    def __init__(
        self, num_classes: int, embedding_size: int, learning_rate_factor: float, seed: int
    ) -> None:
        super().__init__()
        self.num_classes = check_count(num_classes, "num_classes")
        self.embedding_size = check_count(embedding_size, "embedding_size")
        self.learning_rate_factor = check_number(
            learning_rate_factor, "learning_rate_factor", above=0.0
        )
        self.seed = check_count(seed, "seed", at_least=0)

    def _generator(self) -> torch.Generator:
        """The source of the first vectors."""
        return torch.Generator().manual_seed(self.seed)

    def _value(self, batch: Batch) -> Tensor:
        check_classes(batch, self.num_classes)
        check_width(batch, self.embedding_size)
        return self._against_proxies(batch.anchors, batch.labels)

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError


def _full_precision(embeddings: Tensor) -> torch.autocast:
    """Autocast switched off where the embeddings are; lists and arrays become tensors here."""
    device = embeddings.device.type if isinstance(embeddings, Tensor) else "cpu"
    return torch.autocast(device, enabled=False)


def check_classes(batch: Batch, num_classes: int) -> None:
    """Refuse labels that have no proxy."""
    outside = (batch.labels < 0) | (batch.labels >= num_classes)
    if bool(outside.any()):
        raise ValueError(
            f"labels must be within 0 ... {num_classes - 1} (num_classes is {num_classes}), "
            f"got {sorted(set(batch.labels[outside].tolist()))[:10]}"
        )


def check_width(batch: Batch, embedding_size: int) -> None:
    """Refuse embeddings that are not as wide as what they are compared with."""
    width = batch.anchors.shape[1]
    if width != embedding_size:
        raise ValueError(f"embeddings have {width} columns, but embedding_size is {embedding_size}")


def distances(similarity: Tensor) -> Tensor:
    """Euclidean distances of unit vectors, sqrt(2 - 2 s), with a finite gradient at zero.

    Args:
        similarity: Cosines, which rounding may have pushed beyond one.
    """
    squares = 2.0 - 2.0 * similarity
    return squares.clamp(min=torch.finfo(similarity.dtype).eps).sqrt()


def masked_logsumexp(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log Σ exp over the kept entries; the lowest finite number where none is kept.

    Minus infinity would be the value there, but its gradient is not a number.
    """
    return values.masked_fill(~mask, torch.finfo(values.dtype).min).logsumexp(dim)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the kept entries; zero, with its graph, where none is kept."""
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
