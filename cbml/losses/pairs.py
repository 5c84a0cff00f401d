"""Which pairs are positive and negative, tile by tile of rows.

A tile hands out the few similarities that are not of negatives, and writes over them in place. Two
kinds do it in their own way: by the indices of each row's class, or by masks.
"""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

NO_POSITIVES = (
    "no two images of this batch share a label, so that the loss has nothing to pull together: "
    "draw several images of each class, for example with cbml.ClassBalancedSampler"
)


class LabelTile:
    """Rows whose positives are the columns of their own class, K indices for each row.

    A smaller class repeats its last place.

    Args:
        rows: Which rows. T of them
        indices: Columns of the row's class. (T, K)
        positive: The indices that are positive pairs. (T, K)
        sizes: How many columns share the row's label. (T, 1)
        columns: How many columns there are. R
    """

    def __init__(
        self, rows: slice, indices: Tensor, positive: Tensor, sizes: Tensor, columns: int
    ) -> None:
        self.rows, self.indices, self.positive = rows, indices, positive
        self.negative_count = columns - sizes  # (T, 1)
        self._found = sizes > 0  # where the class has no column, the indices mean nothing

    def take(self, similarity: Tensor) -> Tensor:
        """A copy of the similarities at the indices, (T, K)."""
        return similarity.gather(1, self.indices)

    def blank(self, similarity: Tensor, value: float) -> None:
        """Write a value over everything that is not a negative."""
        current = similarity.gather(1, self.indices)
        similarity.scatter_(1, self.indices, torch.where(self._found, value, current))

    def add(self, similarity: Tensor, values: Tensor) -> None:
        """Add to the similarities at the indices.

        Args:
            similarity: Similarity of the tile, changed. (T, R)
            values: Zero wherever the pair is not positive. (T, K)
        """
        similarity.scatter_add_(1, self.indices, values)


class MaskedTile:
    """Rows with positives and negatives anywhere, as masks say.

    Args:
        rows: Which rows. T of them
        positive: The positive pairs. (T, R)
        negative: The negative pairs. (T, R)
    """

    def __init__(self, rows: slice, positive: Tensor, negative: Tensor) -> None:
        self.rows, self.positive = rows, positive
        self._not_negative = ~negative
        self.negative_count = negative.sum(dim=1, keepdim=True)  # (T, 1)

    def take(self, similarity: Tensor) -> Tensor:
        """A copy of all similarities, (T, R)."""
        return similarity.clone()

    def blank(self, similarity: Tensor, value: float) -> None:
        """Write a value over everything that is not a negative."""
        similarity.masked_fill_(self._not_negative, value)

    def add(self, similarity: Tensor, values: Tensor) -> None:
        """Add to the similarities.

        Args:
            similarity: Similarity of the tile, changed. (T, R)
            values: Zero wherever the pair is not positive. (T, R)
        """
        similarity.add_(values)


class LabelPairs:
    """Positives share the label, negatives do not.

    Args:
        labels: Labels of the rows. (B,)
        column_labels: Of the columns; None where they are the rows, and an image is then no pair
            with itself. (R,)
    """

    def __init__(self, labels: Tensor, column_labels: Tensor | None) -> None:
        self.is_self = column_labels is None
        ordered, self.order = (labels if column_labels is None else column_labels).sort(stable=True)
        self.first = torch.searchsorted(ordered, labels)  # (B,)
        self.sizes = torch.searchsorted(ordered, labels, right=True) - self.first  # (B,)

    def tiles(self, tile_rows: int) -> Iterator[LabelTile]:
        """The tiles from top to bottom."""
        sizes: list[int] = self.sizes.tolist()
        if self.is_self and max(sizes) == 1:
            warnings.warn(NO_POSITIVES, stacklevel=1)  # this line, so that Python shows it once
        for start in range(0, len(sizes), tile_rows):
            rows = slice(start, min(start + tile_rows, len(sizes)))
            yield self._tile(rows, max(1, *sizes[rows]))

    def _tile(self, rows: slice, width: int) -> LabelTile:
        steps = torch.arange(width, device=self.order.device)  # (K,)
        sizes = self.sizes[rows, None]  # (T, 1)
        last = (sizes - 1).clamp(min=0)
        # A class without columns may begin behind the last one.
        first = self.first[rows, None].clamp(max=len(self.order) - 1)
        indices = self.order[first + torch.minimum(steps, last)]  # (T, K)
        positive = steps < sizes
        if self.is_self:
            own = torch.arange(rows.start, rows.stop, device=indices.device)
            positive &= indices != own[:, None]
        return LabelTile(rows, indices, positive, sizes, len(self.order))


class ListedPairs:
    """Positives and negatives as a miner lists them; any other pair is neither.

    A pair that is listed twice counts once.

    Args:
        pairs: Anchors and positives, anchors and negatives.
        shape: Number of rows and of columns.
        device: Where the masks are needed.
    """

    def __init__(self, pairs: tuple[Tensor, ...], shape: tuple[int, int], device: torch.device):
        anchors, positives, negative_anchors, negatives = (part.to(device) for part in pairs)
        # By anchor, so that the pairs of a tile stand together.
        order, negative_order = anchors.argsort(), negative_anchors.argsort()
        self.positives = (anchors[order], positives[order])
        self.negatives = (negative_anchors[negative_order], negatives[negative_order])
        self.shape, self.device = shape, device

    def tiles(self, tile_rows: int) -> Iterator[MaskedTile]:
        """The tiles from top to bottom."""
        for start in range(0, self.shape[0], tile_rows):
            rows = slice(start, min(start + tile_rows, self.shape[0]))
            yield MaskedTile(
                rows, self._mask(rows, *self.positives), self._mask(rows, *self.negatives)
            )

    def _mask(self, rows: slice, anchors: Tensor, partners: Tensor) -> Tensor:
        shape = (rows.stop - rows.start, self.shape[1])
        mask = torch.zeros(shape, dtype=torch.bool, device=self.device)
        ends = torch.tensor([rows.start, rows.stop], device=self.device)
        begin, end = torch.searchsorted(anchors, ends).tolist()
        mask[anchors[begin:end] - rows.start, partners[begin:end]] = True
        return mask
