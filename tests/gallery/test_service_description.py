"""The service answers every request as its description says."""

import json
import re
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cbml
from cbml.gallery.routes import router
from tests.gallery.asgi import Client
from tests.gallery.requests import API, image_bytes

ROUTES = {
    ("get", "/info"),
    ("get", "/labels"),
    ("get", "/images"),
    ("get", "/images/{id}"),
    ("get", "/images/{id}/thumbnail"),
    ("get", "/images/{id}/image"),
    ("get", "/images/{id}/search"),
    ("post", "/search"),
    ("get", "/scores"),
    ("get", "/worst"),
    ("get", "/confusions"),
    ("get", "/map"),
    ("get", "/differences"),
    ("get", "/compare/{id}"),
    ("post", "/compare"),
}


def described() -> dict[str, Any]:
    app = FastAPI(title="cbml serve", version=cbml.__version__)
    app.include_router(router)
    description: dict[str, Any] = json.loads(json.dumps(app.openapi()))
    return description


DESCRIPTION = described()


def test_the_description_is_served(client: Client) -> None:
    assert client.get(f"{API}/openapi.json").json() == DESCRIPTION


def test_the_description_names_every_route_and_no_other() -> None:
    paths = DESCRIPTION["paths"]
    found = {(method, path.removeprefix(API)) for path in paths for method in paths[path]}
    assert found == ROUTES
    operations = [operation for methods in paths.values() for operation in methods.values()]
    identifiers = {operation["operationId"] for operation in operations}
    assert len(identifiers) == len(operations)
    assert all(operation["summary"].endswith(".") for operation in operations)


def test_the_pages_that_load_from_elsewhere_are_off(client: Client) -> None:
    for path in ("/docs", "/redoc", "/openapi.json", f"{API}/docs"):
        assert client.get(path).status_code == 404


def resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def fits(schema: dict[str, Any], value: Any, schemas: dict[str, Any]) -> bool:
    """Whether a value is what its schema says, with every field and no other."""
    schema = resolved(schema, schemas)
    if "anyOf" in schema:
        return any(fits(one, value, schemas) for one in schema["anyOf"])
    match schema.get("type"):
        case "integer":
            return type(value) is int
        case "number":
            return type(value) in (int, float)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            inner = schema["items"]
            return isinstance(value, list) and all(fits(inner, one, schemas) for one in value)
        case "object" if "properties" in schema:
            inside = schema["properties"]
            same = isinstance(value, dict) and set(value) == set(inside)
            return same and all(fits(inside[name], item, schemas) for name, item in value.items())
        case "object":
            inner = schema["additionalProperties"]
            return all(fits(inner, item, schemas) for item in value.values())
    raise AssertionError(f"a schema that says nothing: {schema}")


def likely(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """Values as the description allows them, and others."""
    if "anyOf" in schema:
        schema = next(one for one in schema["anyOf"] if one.get("type") != "null")
    good: st.SearchStrategy[str]
    if "enum" in schema:
        good = st.sampled_from([str(choice) for choice in schema["enum"]])
    elif schema["type"] == "integer":
        low, high = schema["minimum"], min(schema["maximum"], 1000)
        good = st.integers(low, high).map(str)
    elif schema["type"] == "number":
        good = st.floats(0, 1).map(lambda value: f"{value:.4f}")
    elif schema["type"] == "boolean":
        good = st.sampled_from(["true", "false"])
    else:
        good = st.sampled_from(["", "class 1", "png", "Class"])
    return st.one_of(good, good, good, st.text(max_size=300))


Request = tuple[str, str, str, dict[str, str], bytes]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    method, path = draw(st.sampled_from(sorted(ROUTES)))
    operation = DESCRIPTION["paths"][API + path][method]
    named = [one for one in operation.get("parameters", []) if one["in"] == "query"]
    wanted = draw(st.lists(st.sampled_from(named), unique_by=lambda one: one["name"]))
    values = {one["name"]: draw(likely(one["schema"])) for one in wanted}
    if draw(st.integers(0, 9)) == 0:
        values[draw(st.text(min_size=1, max_size=20))] = draw(st.text(max_size=20))
    number = draw(st.one_of(st.integers(0, 40).map(str), st.text(max_size=30)))
    body = draw(st.one_of(st.just(image_bytes()), st.binary(max_size=300)))
    return method, path, number, values, body


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(request=requests())
def test_any_request_gets_what_the_description_says(client: Client, request: Request) -> None:
    method, path, number, values, body = request
    address = API + path.replace("{id}", quote(number, safe="", errors="replace"))
    options: dict[str, Any] = {
        "params": {k: v.encode("utf-8", "replace").decode() for k, v in values.items()}
    }
    if method == "post":
        options |= {"content": body, "headers": {"content-type": "image/png"}}
    answer = client.request(method.upper(), address, **options)
    assert answer.status_code < 500
    if "{id}" in path and ("/" in number or number in ("", ".", "..")):
        return  # another address, or none
    responses = DESCRIPTION["paths"][API + path][method]["responses"]
    assert answer.status_code in (200, 400, 404, 422), answer.text
    described = responses.get(str(answer.status_code), responses["default"])["content"]
    kind = answer.headers["content-type"]
    assert kind in described
    if described[kind].get("schema"):
        schemas = DESCRIPTION["components"]["schemas"]
        assert fits(described[kind]["schema"], answer.json(), schemas), answer.text
    if answer.status_code >= 400:
        assert not re.search(r"[\r\n]|pydantic|Traceback", answer.json()["error"]["message"])
