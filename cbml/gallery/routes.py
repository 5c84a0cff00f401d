"""The table of addresses: routes, reading of parameters and description all come from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cbml.gallery.answers import MOST
from cbml.gallery.asking import compare, search, search_with
from cbml.gallery.endpoints import PAGE, Endpoints
from cbml.gallery.parameters import Parameter
from cbml.gallery.thumbnails import THUMBNAIL_SIZES

__all__ = ["ROUTES", "Route"]

_WHICH = Parameter(
    "which", "string", "The gallery, where two are served.", "main", choices=("main", "compare")
)
_LABEL = Parameter("label", "string", "Only pictures of this label.", most=1000)
_TEXT = Parameter("text", "string", "Only pictures whose name or label holds this.", "", most=200)
_OFFSET = Parameter("offset", "integer", "Entries to pass over.", 0, most=10**9)
_LIMIT = Parameter("limit", "integer", "Entries wanted.", 100, least=1, most=PAGE)
_K = Parameter("k", "integer", "Results wanted.", 50, least=1, most=MOST)
_SEARCH = (
    _K,
    Parameter("min_probability", "number", "Only results at least so probable.", most=1),
    _LABEL,
    _TEXT,
    Parameter("hide_duplicates", "boolean", "Leave out what looks like a better result.", False),
    _WHICH,
)
_SIZE = Parameter(
    "size", "integer", "Pixels of the longer side.", 192, most=384, choices=THUMBNAIL_SIZES
)


@dataclass(frozen=True)
class Route:
    """An address below /api/v1.

    Args:
        path: with {id} where an id stands.
        answer: gives it, from the galleries and the call.
        about: one line for the description.
        gives: the schema of what it answers; "jpeg" for pictures.
        parameters: that may be given.
        body: whether a picture comes with it; then the method is POST.
        work: "search" for what needs the vectors or the model, "pictures" for what decodes files.
    """

    path: str
    answer: Callable[[Endpoints, Any], Any]
    about: str
    gives: str
    parameters: tuple[Parameter, ...] = (_WHICH,)
    body: bool = False
    work: Literal["search", "pictures"] = "search"

    @property
    def method(self) -> str:
        """GET or POST."""
        return "POST" if self.body else "GET"


ROUTES = (
    Route("/info", Endpoints.info, "What is served.", "Info"),
    Route("/labels", Endpoints.labels, "The labels by name.", "Labels"),
    Route(
        "/pictures",
        Endpoints.pictures,
        "A page of the list of pictures.",
        "Pictures",
        (_OFFSET, _LIMIT, _LABEL, _TEXT, _WHICH),
    ),
    Route("/pictures/{id}", Endpoints.picture, "All that is known of a picture.", "Picture"),
    Route(
        "/pictures/{id}/thumbnail",
        Endpoints.thumbnail,
        "A picture made small.",
        "jpeg",
        (_SIZE, _WHICH),
        work="pictures",
    ),
    Route(
        "/pictures/{id}/image", Endpoints.image, "A picture to look at.", "jpeg", work="pictures"
    ),
    Route(
        "/pictures/{id}/search",
        search_with,
        "Search with a picture of the gallery.",
        "Answer",
        _SEARCH,
    ),
    Route(
        "/search",
        search,
        "Search with the picture in the body.",
        "Answer",
        _SEARCH,
        body=True,
    ),
    Route("/scores", Endpoints.scores, "Scores of all labelled pictures as queries.", "Scores"),
    Route(
        "/worst",
        Endpoints.worst,
        "A page of the pictures with the worst scores, worst first.",
        "Worst",
        (_OFFSET, _LIMIT, _LABEL, _WHICH),
    ),
    Route("/map", Endpoints.map, "Every picture's place on the map, in columns.", "Map"),
    Route(
        "/compare/{id}",
        compare,
        "Search both galleries with a picture of the main one.",
        "Comparison",
        (_K,),
    ),
    Route(
        "/compare",
        compare,
        "Search both galleries with the picture in the body.",
        "Comparison",
        (_K,),
        body=True,
    ),
)
