"""Windows of classes dealt to batches, none of which may hold a class twice."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["deal"]


def deal(
    sizes: NDArray[np.int64],
    windows: NDArray[np.int64],
    shape: tuple[int, int, int],
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The class and the first picture of each window, (batches, P) each.

    Windows are dealt in P rounds, each round in a new random order of the batches. No batch gets a
    class twice; places left over take a random window of a random class, and windows for which
    there is no place are left out.

    Args:
        sizes: (C,) pictures of each class.
        windows: (C,) how many windows of each class to deal, at most one for each batch.
        shape: how many batches, P classes in each, and K pictures in a window.
        generator: where the randomness comes from.
    """
    batches, classes, pictures = shape
    total = int(windows.sum())
    queue = generator.permutation(len(sizes))
    owner = np.repeat(queue, windows[queue])  # (total,) windows of a class stand together
    first = np.cumsum(windows[queue]) - windows[queue]
    start = (np.arange(total) - np.repeat(first, windows[queue])) * pictures
    dealt = np.full((classes, batches), -1, dtype=np.int64)
    starts = np.zeros((classes, batches), dtype=np.int64)
    taken = np.empty(0, dtype=np.int64)  # batches that hold the class cut by the end of a round
    for number in range(classes):
        order = generator.permutation(batches)
        # A class that goes on from the round before must not meet itself in a batch.
        order = np.concatenate([order[~np.isin(order, taken)], order[np.isin(order, taken)]])
        here = slice(number * batches, (number + 1) * batches)
        count = len(owner[here])
        dealt[number, order[:count]] = owner[here]
        starts[number, order[:count]] = start[here]
        taken = order[:count][owner[here] == owner[here][-1]] if count else taken[:0]
    _fill(dealt.T, starts.T, sizes, generator)
    return dealt.T, starts.T


def _fill(
    dealt: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    generator: np.random.Generator,
) -> None:
    """Put a random window of a class that the batch does not hold yet into each empty place."""
    for place in np.flatnonzero((dealt < 0).any(axis=0)).tolist():
        empty = np.flatnonzero(dealt[:, place] < 0)
        candidate = generator.integers(len(sizes), size=len(empty))
        while True:
            clash = (dealt[empty] == candidate[:, None]).any(axis=1)
            if not clash.any():
                break
            candidate[clash] = (candidate[clash] + 1) % len(sizes)
        dealt[empty, place] = candidate
        starts[empty, place] = generator.integers(sizes[candidate])
