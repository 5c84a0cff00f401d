"""The ranks of each query's positives, counted block by block; nothing is ever sorted by rank.

With s_q the similarities of a query q to the gallery, p_1 >= p_2 >= ... >= p_R those of its
positives and n those of its negatives:

    rank_j = j + |{n : n >= p_j}|                  ties count against the query
    first hit          = rank_1
    R-precision        = |{j : rank_j <= R}| / R
    average precision  = 1/R  Σ_{j : rank_j <= R}  j / rank_j

Only positives among the R nearest enter the precisions. The R-th largest negative is bounded from
below by the R-th largest maximum of groups of negatives; positives at or under the bound have R
negatives before them and are out. The few negatives at or above the lowest positive that is left
are picked out, and the others never looked at again.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbml.evaluation.scene import Scene

__all__ = ["Ranks", "rank_positives"]

# Queries of a block, and the numbers it may hold: 2**26 float32 numbers are 256 MiB.
BLOCK_ROWS = 512
BLOCK_SIZE = 2**26
# A group is one column of the folded row; with this many groups for each of the R largest, few of
# the R largest negatives share a group, and the bound is close.
GROUPS_PER_PLACE = 16
LARGEST_GROUP = 64
# The rank of a positive that is not among the R nearest; larger than any number of pictures.
BEYOND = np.iinfo(np.int64).max


class Ranks(NamedTuple):
    """What the ranks of the positives give for each query.

    Args:
        first_hits: rank of the nearest positive. (Q,)
        average_precisions: at R, or None where not asked for. (Q,)
        r_precisions: share of positives among the R nearest, or None. (Q,)
    """

    first_hits: NDArray[np.int64]
    average_precisions: NDArray[np.float64] | None
    r_precisions: NDArray[np.float64] | None


def rank_positives(scene: Scene, precision: bool) -> Ranks:
    """The ranks of the positives of every query.

    All similarities of a query come from one product with the gallery, and only they are compared.

    Args:
        scene: queries and gallery.
        precision: whether the precisions are needed, which takes longer.
    """
    total, width = len(scene.queries), len(scene.gallery)
    height = _height(scene)
    first_hits = np.zeros(total, dtype=np.int64)
    averages, shares = np.zeros(total), np.zeros(total)
    counts = scene.positives()  # R, (Q,)
    similarity = torch.empty(height, width)
    above = torch.empty(height, width, dtype=torch.bool)
    for start in range(0, total, height):
        # The last block is as high as the others and repeats the last query.
        block = torch.arange(start, start + height).clamp_(max=total - 1)
        places = block.numpy()
        torch.mm(scene.rows[scene.queries[block]], scene.gallery.T, out=similarity)
        positives = _take_positives(similarity, scene, block)  # (H, W)
        if not precision:
            torch.ge(similarity, positives[:, :1], out=above)
            first_hits[places] = 1 + _row_counts(above)
            continue
        ranks = _ranks_within(similarity, positives, counts[block], above)  # (H, W)
        first_hits[places] = ranks[:, 0]
        shares[places], averages[places] = _precisions(ranks, counts[block].numpy())
    return Ranks(first_hits, averages, shares) if precision else Ranks(first_hits, None, None)


def _height(scene: Scene) -> int:
    """How many queries make a block."""
    widest = int((scene.end - scene.begin).max())
    height = min(BLOCK_ROWS, BLOCK_SIZE // (len(scene.gallery) + 8 * widest), len(scene.queries))
    # One row alone would go through another routine, in which equal rows may get unequal products.
    return max(2, height)


def _take_positives(similarity: Tensor, scene: Scene, block: Tensor) -> Tensor:
    """The positives of each row, descending, then -inf; in the block only negatives stay, (H, W).

    The query itself is neither; it leaves the block as well.
    """
    begin, end = scene.begin[block, None], scene.end[block, None]  # (H, 1)
    columns = begin + torch.arange(int((end - begin).max()))  # (H, W)
    inside = columns < end
    columns = torch.where(inside, columns, begin)
    positives = similarity.gather(1, columns)
    positives.masked_fill_(~inside | (columns == scene.own[block, None]), -torch.inf)
    similarity.scatter_(1, columns, -torch.inf)
    return positives.sort(dim=1, descending=True).values


def _ranks_within(
    negatives: Tensor, positives: Tensor, count: Tensor, above: Tensor
) -> NDArray[np.int64]:
    """Rank of each positive that is among the R nearest and of the first; beyond R for others."""
    floor = _floor(negatives, count)  # (H, 1)
    useful = (positives > floor).sum(dim=1)  # they come first, (H,)
    lowest = positives.gather(1, (useful - 1).clamp_(min=0)[:, None])  # (H, 1)
    torch.ge(negatives, lowest, out=above)
    counts, useful_counts = _row_counts(above), useful.numpy()
    order = np.arange(1, positives.shape[1] + 1)
    ranks = np.where(order <= useful_counts[:, None], order, BEYOND)
    ranks[:, 0] = 1 + counts  # stands where no positive, or only the first, is useful
    rows, masks, thresholds = negatives.numpy(), above.numpy(), positives.numpy()
    for row in np.flatnonzero((useful_counts > 1) & (counts > 0)):
        candidates = np.sort(rows[row, np.flatnonzero(masks[row])])
        wanted = thresholds[row, : useful_counts[row]]
        before = len(candidates) - np.searchsorted(candidates, wanted)
        ranks[row, : len(wanted)] = order[: len(wanted)] + before
    return ranks


def _precisions(
    ranks: NDArray[np.int64], count: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """R-precision and average precision at R of each row, (H,)."""
    hit = ranks <= count[:, None]
    precision = np.arange(1, ranks.shape[1] + 1) / ranks
    return hit.sum(axis=1) / count, (hit * precision).sum(axis=1) / count


def _floor(negatives: Tensor, count: Tensor) -> Tensor:
    """A number that at least R negatives of the row reach, or -inf, (H, 1)."""
    height, width = negatives.shape
    most = int(count.max())
    group = min(LARGEST_GROUP, width // (GROUPS_PER_PLACE * most))
    if group < 2:
        return torch.full((height, 1), -torch.inf)
    groups = width // group
    folded = negatives[:, : group * groups].view(height, group, groups)
    largest = folded.amax(dim=1).topk(most, dim=1).values  # (H, most)
    return largest.gather(1, (count - 1)[:, None])


def _row_counts(mask: Tensor) -> NDArray[np.int64]:
    """How many are true in each row, (H,); numpy counts one row far faster than torch sums."""
    return np.array([np.count_nonzero(row) for row in mask.numpy()])
