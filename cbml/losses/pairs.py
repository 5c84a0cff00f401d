"""Which pairs are positive and negative, tile by tile of rows."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LabelPairs", "ListedPairs", "Tile"]


class Tile(NamedTuple):
    """Some rows, the columns where their positives can be, and the kinds of pairs there.

    Columns outside the band are negatives of every row of the tile.

    Args:
        rows: which rows. T of them
        band: which columns. W of them
        positive: the positive pairs in the band. (T, W)
        not_negative: the pairs in the band that are not negative. (T, W)
    """

    rows: slice
    band: slice
    positive: Tensor
    not_negative: Tensor


class LabelPairs:
    """Positives share the label, negatives do not; both label lists are sorted.

    Args:
        labels: of the rows, ascending. (B,)
        column_labels: of the columns, ascending. (R,)
        is_self: rows and columns are the same pictures; a picture is no pair with itself.
    """

    def __init__(self, labels: Tensor, column_labels: Tensor, is_self: bool) -> None:
        self.labels, self.column_labels, self.is_self = labels, column_labels, is_self

    def tiles(self, tile_rows: int) -> Iterator[Tile]:
        """The tiles from top to bottom.

        Args:
            tile_rows: rows of a tile.
        """
        total = len(self.labels)
        if total <= tile_rows and len(self.column_labels) <= 2 * tile_rows:
            yield self._tile(slice(0, total), slice(0, len(self.column_labels)))
            return
        starts = range(0, total, tile_rows)
        first = self.labels[list(starts)]
        last = self.labels[[min(start + tile_rows, total) - 1 for start in starts]]
        left = torch.searchsorted(self.column_labels, first).tolist()
        right = torch.searchsorted(self.column_labels, last, right=True).tolist()
        for start, begin, end in zip(starts, left, right, strict=True):
            # A band is never empty, even where no reference shares a label with these rows.
            begin = min(begin, len(self.column_labels) - 1)
            band = slice(begin, max(end, begin + 1))
            yield self._tile(slice(start, min(start + tile_rows, total)), band)

    def _tile(self, rows: slice, band: slice) -> Tile:
        same = self.labels[rows, None] == self.column_labels[None, band]  # (T, W)
        positive = same
        if self.is_self:
            row_index = torch.arange(rows.start, rows.stop, device=same.device)
            column_index = torch.arange(band.start, band.stop, device=same.device)
            positive = same & (row_index[:, None] != column_index[None, :])
        return Tile(rows, band, positive, same)


class ListedPairs:
    """Positives and negatives as a miner lists them; any other pair is neither.

    A pair that is listed twice counts once.

    Args:
        pairs: anchors and positives, anchors and negatives.
        shape: number of rows and of columns.
        device: where the masks are needed.
    """

    def __init__(self, pairs: tuple[Tensor, ...], shape: tuple[int, int], device: torch.device):
        anchors, positives, negative_anchors, negatives = (part.to(device) for part in pairs)
        # By anchor, so that the pairs of a tile stand together.
        order, negative_order = anchors.argsort(), negative_anchors.argsort()
        self.positives = (anchors[order], positives[order])
        self.negatives = (negative_anchors[negative_order], negatives[negative_order])
        self.shape, self.device = shape, device

    def tiles(self, tile_rows: int) -> Iterator[Tile]:
        """The tiles from top to bottom; their band is the whole row.

        Args:
            tile_rows: rows of a tile.
        """
        total, columns = self.shape
        for start in range(0, total, tile_rows):
            rows = slice(start, min(start + tile_rows, total))
            positive = self._mask(rows, *self.positives)
            negative = self._mask(rows, *self.negatives)
            yield Tile(rows, slice(0, columns), positive, ~negative)

    def _mask(self, rows: slice, anchors: Tensor, partners: Tensor) -> Tensor:
        shape = (rows.stop - rows.start, self.shape[1])
        mask = torch.zeros(shape, dtype=torch.bool, device=self.device)
        ends = torch.tensor([rows.start, rows.stop], device=self.device)
        begin, end = torch.searchsorted(anchors, ends).tolist()
        mask[anchors[begin:end] - rows.start, partners[begin:end]] = True
        return mask
