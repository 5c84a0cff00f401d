"""Numbers of clusters that mean the same before and after a refresh, as far as that goes."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["matched"]

Labels = NDArray[np.int64]


def matched(previous: Labels, current: Labels, clusters: int) -> Labels:
    """The current labels, renumbered so that as many as possible agree with the previous ones.

    Pairs of a former and a new cluster are taken in the order of the pictures they share, the
    largest first, and ties by the lower numbers; each cluster is taken once. New clusters without
    a partner get the numbers that are left, in their order. Unlike the best of all assignments
    this takes no table of K × K numbers, and it agrees on at least half as many pictures.

    Args:
        previous: the number of each picture's former cluster. (N,)
        current: that of its new cluster, 0 ... K - 1. (N,)
        clusters: K.
    """
    pairs, shared = np.unique(np.stack([previous, current], axis=1), axis=0, return_counts=True)
    number = np.full(clusters, -1, dtype=np.int64)  # new cluster -> the number it gets
    used = np.zeros(clusters, dtype=np.bool_)
    for place in np.argsort(-shared, kind="stable").tolist():
        former, new = pairs[place].tolist()
        if former < clusters and not used[former] and number[new] < 0:
            number[new], used[former] = former, True
    number[number < 0] = np.flatnonzero(~used)
    renumbered: Labels = number[current]
    return renumbered
