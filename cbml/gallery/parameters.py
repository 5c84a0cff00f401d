"""The parameters of requests: their types, bounds and descriptions, and what is refused."""

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Path, Query, Request
from pydantic import BeforeValidator, Field

from cbml.gallery.results import MAX_RESULTS, SearchOptions
from cbml.gallery.uploads import Refusal

if TYPE_CHECKING:
    from cbml.gallery.service import Service

__all__ = [
    "PAGE",
    "ImageId",
    "Label",
    "Limit",
    "Offset",
    "Options",
    "Results",
    "Served",
    "Size",
    "Text",
    "Which",
    "check_parameters",
    "known_parameters",
]

PAGE = 500  # entries of a list in one answer


def check_parameters(request: Request) -> None:
    """Refuse parameters that nobody reads: a typing error must not pass for a search."""
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
) -> SearchOptions:
    return SearchOptions(
        k=k,
        min_probability=min_probability,
        label=label,
        text=text,
        hide_duplicates=hide_duplicates,
    )


Options = Annotated[SearchOptions, Depends(_search_options)]
