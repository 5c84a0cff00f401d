"""The shapes of what the service is asked and answers: parameters, their bounds, and results."""

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Path, Query, Request
from pydantic import BeforeValidator, Field

from cbml.gallery.middleware import Refusal
from cbml.gallery.results import (
    MAX_RESULTS,
    QueryInfo,
    SearchOptions,
    SearchResponse,
    SearchResult,
)

if TYPE_CHECKING:
    from cbml.gallery.service import Service

PAGE = 500  # entries of a list in one answer


def check_parameters(request: Request) -> None:
    """Refuse unknown parameters: a typing error must not pass for a search."""
    known = request.app.state.parameters.get(request.scope["route"].path)
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if known is not None and name not in known:
            names = ", ".join(known) or "none"
            raise Refusal(400, f"{name[:40]!r}: no such parameter; known: {names}")
        if name in seen:
            raise Refusal(400, f"{name}: given twice")
        seen.add(name)


def known_parameters(description: dict[str, Any]) -> dict[str, list[str]]:
    """Path -> names of its query parameters, from the OpenAPI description."""
    return {
        path: [
            parameter["name"]
            for operation in operations.values()
            for parameter in operation.get("parameters", [])
            if parameter["in"] == "query"
        ]
        for path, operations in description["paths"].items()
    }


def _whole(value: Any) -> Any:
    # Digits alone: Python reads 1_0 and digits of other scripts as numbers too.
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,18}", value):
        raise ValueError("must be a whole number")
    return int(value)


def _decimal(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,18})?", value):
        raise ValueError("must be a number")
    return value


def _flag(value: Any) -> Any:
    if value not in ("true", "false", True, False):
        raise ValueError("must be true or false")
    return value


def _service(request: Request) -> "Service":
    service: Service = request.app.state.service
    return service


Served = Annotated[Any, Depends(_service)]  # a Service, whose module imports this one
ImageId = Annotated[
    int,
    Field(ge=0, le=2**53),
    BeforeValidator(_whole),
    Path(alias="id", description="Id of an image."),
]
Which = Annotated[
    Literal["main", "compare"], Query(description="The gallery, where two are served.")
]
Label = Annotated[
    str | None, Query(max_length=1000, description="Only images of this label, in any case.")
]
Text = Annotated[
    str, Query(max_length=200, description="Only images whose name or label contains this.")
]
Offset = Annotated[
    int, Field(ge=0, le=10**9), BeforeValidator(_whole), Query(description="Entries to skip.")
]
Limit = Annotated[
    int, Field(ge=1, le=PAGE), BeforeValidator(_whole), Query(description="Entries wanted.")
]
Results = Annotated[
    int, Field(ge=1, le=MAX_RESULTS), BeforeValidator(_whole), Query(description="Results wanted.")
]
Probability = Annotated[
    Annotated[float, Field(ge=0, le=1), BeforeValidator(_decimal)] | None,
    Query(description="Only results at least so probable."),
]
Sort = Annotated[Literal["similarity", "probability"], Query(description="Order of the results.")]
HideDuplicates = Annotated[
    Annotated[bool, BeforeValidator(_flag)],
    Query(description="Leave out near-duplicates of the query and of better results."),
]
Size = Annotated[
    Annotated[Literal[96, 192, 384], BeforeValidator(_whole)],
    Query(description="Pixels of the longer side."),
]


def _search_options(
    k: Results = 50,
    min_probability: Probability = None,
    label: Label = None,
    text: Text = "",
    hide_duplicates: HideDuplicates = False,
    sort: Sort = "similarity",
) -> SearchOptions:
    return SearchOptions(
        k=k,
        min_probability=min_probability,
        label=label,
        text=text,
        hide_duplicates=hide_duplicates,
        sort=sort,
    )


Options = Annotated[SearchOptions, Depends(_search_options)]


async def _now() -> float:
    return time.perf_counter()


Started = Annotated[float, Depends(_now)]  # when the request came


# What is answered: dictionaries of these are sent.

_BYTES = {"schema": {"type": "string", "format": "binary"}}
BINARY_BODY = {
    "requestBody": {
        "required": True,
        "content": {"image/*": _BYTES, "application/octet-stream": _BYTES},
    }
}
JPEG_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {}}, "description": "The image."},
    304: {"description": "The client has it already."},
}


@dataclass
class ErrorDetail:
    """What is wrong, in one line."""

    status: int
    message: str


@dataclass
class ErrorResponse:
    """The body of every answer that is not 200 or 304."""

    error: ErrorDetail


ERROR_RESPONSE: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorResponse, "description": "What is wrong, in one line."}
}


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
class ProbabilityCheck:
    """What the probabilities were tested on: classes to which they had not been fitted.

    `on` is "gallery" where halves of the gallery's own classes checked each other, and "held-out"
    for images held out of training; `error` is the mean gap of confidence and accuracy.
    """

    on: Literal["gallery", "held-out"]
    results: int
    error: float


@dataclass
class Info:
    """The gallery that is served."""

    name: str
    folder: str
    program: str
    source: str
    version: str
    images: int
    labeled: int
    labels: int
    trained_on: int | None
    known_labels: int | None
    bad: int
    dim: int
    model: ModelInfo
    has_probability: bool
    probability_check: ProbabilityCheck | None
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
    trained_on: bool | None
    same_content: list[int]


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
class ConfusedQuery:
    """A query, and its nearest image, which has another label."""

    query: ImageEntry
    nearest: ImageEntry


@dataclass
class Confusion:
    """How often the nearest image to a query of one label has another label, with examples."""

    label: str
    taken_for: str
    count: int
    examples: list[ConfusedQuery]


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
