"""What asks and what answers in a search: one set for both, or queries and a gallery."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbml.bayes.lists import QUERIES, nearest_lists
from cbml.bayes.pairs import Rows, Whole, unit
from cbml.errors import BadData
from cbml.index import Index
from cbml.index.inputs import Labels, Matrix, read_sides

__all__ = ["Found", "Sides"]


class Found(NamedTuple):
    """The nearest pictures of each query, the nearest first.

    Args:
        similarities: to the query. (Q, K)
        places: in the set that was searched. (Q, K)
        right: whether each is of the query's class. (Q, K)
    """

    similarities: Rows
    places: Whole
    right: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Sides:
    """Embeddings of both sides under one numbering of the classes.

    Args:
        matrix: one row per picture that asks. (N, D)
        codes: the class of each. (N,)
        gallery: one row per picture that answers; None where every picture is both. (M, D)
        gallery_codes: the class of each. (M,)
    """

    matrix: NDArray[Any]
    codes: Whole
    gallery: NDArray[Any] | None
    gallery_codes: Whole | None

    @classmethod
    def of(
        cls,
        embeddings: Matrix,
        labels: Labels,
        gallery_embeddings: Matrix | None,
        gallery_labels: Labels | None,
    ) -> "Sides":
        """Read both sides.

        Args:
            embeddings: one row per picture. (N, D)
            labels: integers or strings, one per row. (N,)
            gallery_embeddings: the other side, where it is not the same set. (M, D)
            gallery_labels: one per row of the gallery. (M,)
        """
        asking, answering = read_sides(embeddings, labels, gallery_embeddings, gallery_labels)
        matrix, names = asking
        if answering is None:
            return cls(matrix, np.unique(names, return_inverse=True)[1], None, None)
        gallery, others = answering
        codes = np.unique(np.concatenate([names, others]), return_inverse=True)[1]
        return cls(matrix, codes[: len(names)], gallery, codes[len(names) :])

    @property
    def arguments(self) -> dict[str, Any]:
        """As the statistics and the histogram of pairs take them."""
        return {
            "embeddings": self.matrix,
            "labels": self.codes,
            "gallery_embeddings": self.gallery,
            "gallery_labels": self.gallery_codes,
        }

    @property
    def classes(self) -> int:
        """How many there are on both sides together."""
        known = [self.codes] if self.gallery_codes is None else [self.codes, self.gallery_codes]
        return len(np.unique(np.concatenate(known)))

    def halves(self, seed: int) -> list["Sides"]:
        """The pictures of each half of the classes.

        Args:
            seed: of the halves.
        """
        half_of = np.random.default_rng(seed).permutation(self.classes) % 2
        parts = []
        for half in (0, 1):
            here = half_of[self.codes] == half
            if not here.any():
                raise BadData("labels: all pictures are of one class; halves of classes need two")
            if self.gallery is None or self.gallery_codes is None:
                parts.append(Sides(self.matrix[here], self.codes[here], None, None))
                continue
            there = half_of[self.gallery_codes] == half
            if not there.any():
                raise BadData("labels: half of the classes has no picture in the gallery")
            left = self.matrix[here], self.codes[here]
            parts.append(Sides(*left, self.gallery[there], self.gallery_codes[there]))
        return parts

    @property
    def searched(self) -> NDArray[Any]:
        """The pictures that answer, one row each."""
        return self.matrix if self.gallery is None else self.gallery

    def results(self, depth: int) -> Found:
        """What searches find, of 2,048 queries where there are more.

        Args:
            depth: results for each query; fewer where fewer pictures are searched.
        """
        rows = unit(self.matrix, "embeddings")
        if self.gallery is None or self.gallery_codes is None:
            lists = nearest_lists(rows, depth)
            return Found(lists.similarities, lists.neighbours, lists.matches(self.codes))
        places = np.arange(len(rows))
        if len(rows) > QUERIES:
            places = np.sort(np.random.default_rng(0).permutation(len(rows))[:QUERIES])
        index = Index(rows.shape[1])
        index.add(unit(self.gallery, "gallery_embeddings"))
        found = index.search(rows[places], depth)
        right: NDArray[np.bool_] = self.gallery_codes[found.ids] == self.codes[places][:, None]
        return Found(found.similarities, found.ids, right)
