"""The shapes of what the service answers, for its description; dictionaries of these are sent."""

from dataclasses import dataclass

from cbml.gallery.results import QueryInfo, SearchResponse, SearchResult

__all__ = [
    "Comparison",
    "Confusions",
    "Differences",
    "ErrorResponse",
    "ImageDetail",
    "ImageList",
    "Info",
    "Labels",
    "Map",
    "Scores",
    "TimedSearchResponse",
    "WorstQueries",
]


@dataclass
class ErrorDetail:
    """What is wrong, in one line."""

    status: int
    message: str


@dataclass
class ErrorResponse:
    """The body of every answer that is not 200 or 304."""

    error: ErrorDetail


@dataclass
class ModelInfo:
    """The model that made the embeddings."""

    backbone: str
    pooling: str
    provenance: str
    crop: int


@dataclass
class Limits:
    """What one request can ask for."""

    k: int
    page: int
    body_bytes: int
    pixels: int
    depth: int
    thumbnail_sizes: list[int]


@dataclass
class Info:
    """What is served."""

    name: str
    folder: str
    source: str
    version: str
    images: int
    labeled: int
    labels: int
    bad: int
    dim: int
    model: ModelInfo
    has_probability: bool
    calibrated_on: str | None
    has_map: bool
    has_scores: bool
    compare: str | None
    limits: Limits


@dataclass
class LabelCount:
    """A label and how many images have it."""

    label: str
    count: int


@dataclass
class Labels:
    """The labels by name."""

    labels: list[LabelCount]


@dataclass
class ImageEntry:
    """An image in a list."""

    id: int
    name: str
    label: str | None


@dataclass
class ImageList:
    """A page of the list of images."""

    total: int
    offset: int
    images: list[ImageEntry]


@dataclass(kw_only=True)
class ImageDetail:
    """All that is known of an image."""

    id: int
    name: str
    label: str | None
    positives: int | None
    first_hit_rank: int | None
    average_precision: float | None
    width: int
    height: int
    bytes: int
    sha256: str
    same_content: list[int]
    command: str


@dataclass(kw_only=True, frozen=True)
class TimedSearchResponse(SearchResponse):
    """The results of a search, and how long it took."""

    took_ms: float


@dataclass
class Scores:
    """Scores of all labeled images as queries."""

    metrics: dict[str, float]
    queries: int
    lone_queries: int
    classes: int


@dataclass
class WorstQueries:
    """A page of the images with the worst scores, worst first."""

    total: int
    offset: int
    images: list[QueryInfo]


@dataclass
class Confusion:
    """How often the nearest image of one label has another; the queries are examples."""

    label: str
    taken_for: str
    count: int
    queries: list[int]


@dataclass
class Confusions:
    """A page of the pairs of labels that are taken for each other, most frequent first."""

    total: int
    offset: int
    errors: int
    confusions: list[Confusion]


@dataclass
class Map:
    """Every image's position on the map, in columns."""

    ids: list[int]
    x: list[int]
    y: list[int]
    labels: list[int]
    label_names: list[str]


@dataclass(kw_only=True, frozen=True)
class ComparedResult(SearchResult):
    """A result, and where the same image stands in the other gallery."""

    other_id: int | None
    other_rank: int | None
    moved: int | None


@dataclass
class ComparedSide:
    """The results of one of two galleries."""

    query: QueryInfo
    results: list[ComparedResult]


@dataclass
class Comparison:
    """One query in two galleries."""

    query: QueryInfo
    main: ComparedSide
    compare: ComparedSide
    took_ms: float


@dataclass
class Difference:
    """A query and how well each gallery answers it."""

    id: int
    name: str
    label: str | None
    average_precision: float
    other_average_precision: float


@dataclass
class Differences:
    """A page of the queries on which two galleries differ most."""

    total: int
    offset: int
    images: list[Difference]
