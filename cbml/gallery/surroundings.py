"""How crowded it is around each picture of a gallery, looked up when the picture is first shown."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cbml.index import Store

if TYPE_CHECKING:
    from cbml.bayes import MatchProbability

__all__ = ["Surroundings"]

# Each picture costs a search: ten results 20 ms of one processor in a gallery as large as this, and
# the results must not wait for it.
LARGEST = 20_000
BLOCK = 256


class Surroundings:
    """The backgrounds of pictures, each kept once it is known.

    All of them at once would cost as many searches as there are pictures, again after every
    addition; those of the results that are shown cost one search of a few vectors.

    Args:
        store: the vectors.
        ids: of the pictures, ascending. (N,)
        calibration: what a background is.
    """

    def __init__(
        self, store: Store, ids: NDArray[np.int64], calibration: "MatchProbability"
    ) -> None:
        self.store, self.ids, self.calibration = store, ids, calibration
        self._known = np.full(len(ids), np.nan)

    def of(self, places: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """The backgrounds of some pictures, (K,); None where they tell nothing or cost too much.

        Args:
            places: where they stand in the gallery. (K,)
        """
        if self.calibration.by_both is None or len(self.ids) > LARGEST:
            return None
        missing = np.unique(places[np.isnan(self._known[places])])
        for start in range(0, len(missing), BLOCK):
            block = missing[start : start + BLOCK]
            numbers = self.ids[block]
            found = self.store.search(self.store.vectors(numbers), self.calibration.depth + 1)
            others = np.where(found.ids == numbers[:, None], -np.inf, found.similarities)
            self._known[block] = self.calibration.background(others)[:, 0]
        return self._known[places]
