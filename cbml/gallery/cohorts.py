"""How similar its nearest others are to each image of a gallery, found when it is first shown."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cbml.index import Store

if TYPE_CHECKING:
    from cbml.bayes import MatchProbability

__all__ = ["Cohorts"]

# Each image costs a search: ten results 20 ms of one processor in a gallery as large as this, and
# the results must not wait for it.
LARGEST = 20_000
BLOCK = 256


class Cohorts:
    """The cohort similarity of images, each kept once it is known.

    All of them at once would cost as many searches as there are images, again after every
    addition; those of the results that are shown cost one search of a few vectors.
    """

    def __init__(
        self, store: Store, ids: NDArray[np.int64], calibration: "MatchProbability"
    ) -> None:
        self.store, self.ids, self.calibration = store, ids, calibration
        self._known = np.full(len(ids), np.nan)

    def of(self, indices: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """The cohort similarities of some images, (K,); None if they are not used or too costly."""
        if self.calibration.by_both is None or len(self.ids) > LARGEST:
            return None
        missing = np.unique(indices[np.isnan(self._known[indices])])
        for start in range(0, len(missing), BLOCK):
            block = missing[start : start + BLOCK]
            ids = self.ids[block]
            found = self.store.search(self.store.vectors(ids), self.calibration.depth + 1)
            others = np.where(found.ids == ids[:, None], -np.inf, found.similarities)
            self._known[block] = self.calibration.cohort_mean(others)[:, 0]
        return self._known[indices]
