"""What an evaluation asks of its numbers."""

from collections.abc import Iterable

import numpy as np

__all__ = ["as_cutoffs"]


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
