"""What is asked of a gallery and what it answers: plain data, and a page with the images inside."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cbml.data import UnreadableImage, read_image
from cbml.errors import BadData
from cbml.gallery.images import shown
from cbml.gallery.thumbnails import Signature
from cbml.report import QueryTiles, Tile, thumbnail, write_page

if TYPE_CHECKING:
    from cbml.gallery.gallery import Gallery

MAX_RESULTS = 500


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How many results are wanted, and which.

    Args:
        k: Number of results.
        min_probability: Only results at least so probable.
        label: Only results of this label, whatever the case.
        text: Only results whose name or label contains this, whatever the case.
        hide_duplicates: Leave out near-duplicates of the query and of better results.
        sort: Order of the k nearest: by similarity, which is by rank, or by probability.
    """

    k: int = 10
    min_probability: float | None = None
    label: str | None = None
    text: str = ""
    hide_duplicates: bool = False
    sort: Literal["similarity", "probability"] = "similarity"

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_RESULTS:
            raise BadData(f"k must be from 1 to {MAX_RESULTS}, got {self.k}")
        if self.sort not in ("similarity", "probability"):
            raise BadData(f"sort must be similarity or probability, got {self.sort!r}")
        if self.min_probability is not None and not 0 <= self.min_probability <= 1:
            raise BadData(f"min_probability must be from 0 to 1, got {self.min_probability}")

    def ordered(self, results: "tuple[SearchResult, ...]") -> "tuple[SearchResult, ...]":
        """Results, best first, in the order that is asked for.

        Args:
            results: The nearest first.
        """
        if self.sort == "similarity":
            return results
        return tuple(sorted(results, key=lambda result: -(result.probability or 0.0)))


@dataclass(frozen=True, eq=False)
class Query:
    """What to search with.

    Args:
        vector: Embedding of unit length. (D,)
        signature: As `thumbnails.signature_of` gives it.
        index: Position of the image in the gallery; None for an image from elsewhere.
        parts: What the model's reranker reads of it, one row each; empty where it names none.
    """

    vector: NDArray[np.float32]
    signature: Signature
    index: int | None = None
    parts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class QueryInfo:
    """What is known of the query; nothing if it is not in the gallery.

    Args:
        id: Id of the image.
        name: Name of the image.
        label: Label of the image.
        positives: Number of other images with its label.
        first_hit_rank: Rank of the nearest of them.
        average_precision: Average precision at R, the number of positives.
    """

    id: int | None = None
    name: str | None = None
    label: str | None = None
    positives: int | None = None
    first_hit_rank: int | None = None
    average_precision: float | None = None


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """An image that was found.

    Args:
        rank: Among all images but the query, before any filter; None if too deep to be known.
        id: Id of the image.
        name: Name of the image.
        label: Label of the image.
        similarity: Cosine of its embedding and the query's.
        probability: Probability that it belongs with the query; None without a calibration.
        relevant: Whether it has the query's label; None where one of the two is unknown.
        duplicate: Whether it is a near-duplicate of the query or of a better result.
    """

    rank: int | None
    id: int
    name: str
    label: str | None
    similarity: float
    probability: float | None
    relevant: bool | None
    duplicate: bool


@dataclass(frozen=True, kw_only=True)
class SearchResponse:
    """The results of a search.

    Args:
        query: What is known of the query.
        results: Best first.
        missed: Images of the query's label that are not among the results, best first.
        hidden_duplicates: How many results were left out as near-duplicates.
        searched: How many images the query was compared with.
    """

    query: QueryInfo
    results: tuple[SearchResult, ...]
    missed: tuple[SearchResult, ...]
    hidden_duplicates: int
    searched: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Images by descending similarity to a query, the query itself left out.

    A reranker may have put the first of them in another order.

    `indices` are positions in the gallery, `ranks` count from 1 and are 0 where unknown. (M,)
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float32]
    ranks: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, which: NDArray[np.bool_] | slice) -> "Ranking":
        """Some of them, in order."""
        return Ranking(self.indices[which], self.similarities[which], self.ranks[which])

    def unreached(self, allowed: NDArray[np.bool_], query: Query) -> NDArray[np.int64]:
        """Indices of allowed images that the ranking does not reach, ascending."""
        below = allowed.copy()
        below[self.indices] = False
        if query.index is not None:
            below[query.index] = False
        return np.flatnonzero(below)


def write_html(
    path: Path, gallery: "Gallery", responses: Sequence[tuple[str, SearchResponse]]
) -> None:
    """Write responses as one HTML file with small copies of all images.

    Args:
        path: The file to create or replace.
        gallery: What was searched.
        responses: Each with the file of its query.
    """
    searches = []
    for query, response in responses:
        results, missed = (
            [_tile(gallery, result) for result in part]
            for part in (response.results, response.missed)
        )
        own = Tile(_small(Path(query)), response.query.label or "", "query", "query")
        searches.append((shown(query), _summary(response), QueryTiles(own, results), missed))
    write_page(path, "search.html", title=shown(f"Search in {gallery.name}"), searches=searches)


def _summary(response: SearchResponse) -> str:
    text = f"compared with {response.searched:,} images"
    if response.query.average_precision is None:
        return text
    return (
        f"first hit at rank {response.query.first_hit_rank}, average precision "
        f"{response.query.average_precision:.3f}, {text}"
    )


def _tile(gallery: "Gallery", result: SearchResult) -> Tile:
    marks = {True: "✓ ", False: "✗ ", None: ""}
    kinds: dict[bool | None, Literal["relevant", "irrelevant", "unknown"]] = {
        True: "relevant",
        False: "irrelevant",
        None: "unknown",
    }
    numbers = ["deep" if result.rank is None else f"#{result.rank}", f"{result.similarity:.3f}"]
    if result.probability is not None:
        numbers.append(f"{result.probability:.0%}")
    image = _small(Path(gallery.images[gallery.index_of(result.id)].path))
    caption = marks[result.relevant] + " · ".join(numbers)
    return Tile(image, result.label or "", caption, kinds[result.relevant], note=result.name)


def _small(path: Path) -> str:
    """A small copy of an image as a data address; an empty one where it cannot be read."""
    try:
        return thumbnail(read_image(path), 150)
    except UnreadableImage:
        return "data:,"
