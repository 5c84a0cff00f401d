"""The description of the service for programs, made from the table of routes."""

import dataclasses
import types
import typing
from typing import Any

from cbml import __version__
from cbml.gallery.answers import Answer, Asked, Result
from cbml.gallery.parameters import Parameter
from cbml.gallery.routes import ROUTES, Route

__all__ = ["PREFIX", "openapi"]

PREFIX = "/api/v1"
_NAMES = {int: "integer", float: "number", bool: "boolean", str: "string"}
_ERRORS = {
    "400": "A parameter is wrong.",
    "404": "There is no such thing.",
    "429": "Too many requests at once.",
}
_BODY_ERRORS = {
    "408": "The body came too slowly.",
    "413": "The body is too long.",
    "415": "The body is no picture by its content type.",
    "422": "The body is no picture that can be read.",
}


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "cbml serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _operation(route: Route) -> dict[str, Any]:
    parameters = [parameter.schema() for parameter in route.parameters]
    if "{id}" in route.path:
        number = Parameter("id", "integer", "The number of a picture.", most=2**53).schema()
        parameters.insert(0, {**number, "in": "path", "required": True})
    content: dict[str, Any] = {"image/jpeg": {}}
    if route.gives != "jpeg":
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.gives}"}}}
    wrong = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors = {**_ERRORS, **(_BODY_ERRORS if route.body else {})}
    words = route.path.replace("{id}", "id").strip("/").split("/")
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": route.about,
        "parameters": parameters,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{code: {"description": text, "content": wrong} for code, text in errors.items()},
        },
    }
    if route.body:
        picture = {"schema": {"type": "string", "format": "binary"}}
        kinds = ("image/*", "application/octet-stream")
        operation["requestBody"] = {"required": True, "content": dict.fromkeys(kinds, picture)}
    return operation


def _schemas() -> dict[str, Any]:
    whole, number, text = ({"type": kind} for kind in ("integer", "number", "string"))
    maybe_text = {"type": ["string", "null"]}
    flag = {"type": "boolean"}
    entry = _object(id=whole, name=text, label=maybe_text)
    asked, result = _of(Asked), _of(Result)
    moves = {name: {"type": ["integer", "null"]} for name in ("other_id", "other_rank", "moved")}
    moved = _object(**result["properties"], **moves)
    side = _object(query=asked, results=_list(moved))
    model = _object(backbone=text, pooling=text, provenance=text, crop=whole)
    limits = dict.fromkeys(("k", "page", "body_bytes", "pixels", "depth"), whole)
    whole_facts = dict.fromkeys(("pictures", "labelled", "labels", "bad", "dim"), whole)
    flags = dict.fromkeys(("has_probability", "has_map", "has_scores"), flag)
    detail = {"width": whole, "height": whole, "bytes": whole, "sha256": text, "command": text}
    answer = _of(Answer)["properties"] | {"query": asked, "took_ms": number}
    answer |= {"results": _list(result), "missed": _list(result)}
    columns = dict.fromkeys(("ids", "x", "y", "labels"), _list(whole))
    counts = dict.fromkeys(("queries", "lone_queries", "classes"), whole)
    recall = {"type": "object", "additionalProperties": number}
    return {
        "Error": _object(error=_object(status=whole, message=text)),
        "Info": _object(
            name=text,
            folder=text,
            version=text,
            model=model,
            compare=maybe_text,
            limits=_object(**limits, thumbnail_sizes=_list(whole)),
            **whole_facts,
            **flags,
        ),
        "Labels": _object(labels=_list(_object(label=text, count=whole))),
        "Pictures": _object(total=whole, offset=whole, pictures=_list(entry)),
        "Picture": _object(**asked["properties"], **detail, same_content=_list(whole)),
        "Answer": _object(**answer),
        "Scores": _object(recall=recall, map_at_r=number, r_precision=number, **counts),
        "Worst": _object(total=whole, offset=whole, pictures=_list(asked)),
        "Map": _object(**columns, label_names=_list(text)),
        "Comparison": _object(query=asked, main=side, compare=side, took_ms=number),
    }


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _of(kind: type[Any]) -> dict[str, Any]:
    """The schema of a dataclass of plain fields."""
    hints = typing.get_type_hints(kind)
    return _object(**{field.name: _plain(hints[field.name]) for field in dataclasses.fields(kind)})


def _plain(hint: Any) -> dict[str, Any]:
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    if isinstance(hint, types.UnionType):
        names = [_NAMES.get(part, "null") for part in typing.get_args(hint)]
        return {"type": names}
    return {}
