"""What is asked of a gallery and what it answers, as plain data."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData
from cbml.gallery.likeness import Look

__all__ = ["Answer", "Asked", "Query", "Result", "Wish"]

MOST = 500


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How to answer.

    Args:
        k: results wanted.
        min_probability: only results at least so probable.
        label: only results of this label.
        text: only results whose name or label holds this, whatever the case.
        hide_duplicates: leave out results that look like the query or a better result.
    """

    k: int = 10
    min_probability: float | None = None
    label: str | None = None
    text: str = ""
    hide_duplicates: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MOST:
            raise BadData(f"k must be from 1 to {MOST}, got {self.k}")
        if self.min_probability is not None and not 0 <= self.min_probability <= 1:
            raise BadData(f"min_probability must be from 0 to 1, got {self.min_probability}")


@dataclass(frozen=True, eq=False)
class Query:
    """What to search with.

    Args:
        vector: of unit length. (D,)
        look: as `look_of` gives it. (LOOK,)
        place: where it stands in the gallery; None for a picture from elsewhere.
    """

    vector: NDArray[np.float32]
    look: Look
    place: int | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is known of the query; nothing, if it is not in the gallery.

    Args:
        id: of the picture.
        name: likewise.
        label: likewise.
        positives: how many other pictures have its label.
        first_hit_rank: the rank of the nearest of them.
        average_precision: at R, the number of positives.
    """

    id: int | None = None
    name: str | None = None
    label: str | None = None
    positives: int | None = None
    first_hit_rank: int | None = None
    average_precision: float | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """A picture that was found.

    Args:
        rank: among all pictures, the query left out, filters or not; None if too deep to be known.
        id: of the picture.
        name: likewise.
        label: likewise.
        similarity: cosine.
        probability: that it belongs with the query; None without a calibration.
        correct: whether it has the query's label; None where one of them is unknown.
        duplicate: whether it looks like the query or a better result.
    """

    rank: int | None
    id: int
    name: str
    label: str | None
    similarity: float
    probability: float | None
    correct: bool | None
    duplicate: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The results of a search.

    Args:
        query: what is known of the query.
        results: best first.
        missed: pictures of the query's label that are not among them, best first.
        hidden_duplicates: how many results were left out as duplicates.
        searched: how many pictures the query was compared with.
    """

    query: Asked
    results: tuple[Result, ...]
    missed: tuple[Result, ...]
    hidden_duplicates: int
    searched: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)
