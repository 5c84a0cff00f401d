"""The service answers every request as its description says."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbml.gallery.endpoints import Endpoints
from cbml.gallery.openapi import PREFIX, openapi
from cbml.gallery.parameters import Parameter
from cbml.gallery.routes import ROUTES, Route
from tests.gallery.asgi import Client
from tests.gallery.asking import API, picture_bytes


def test_the_description_names_every_route_and_no_other() -> None:
    described = {
        (path, method) for path, methods in openapi()["paths"].items() for method in methods
    }
    assert described == {(PREFIX + route.path, route.method.lower()) for route in ROUTES}
    identifiers = [
        operation["operationId"]
        for methods in openapi()["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(identifiers)) == len(identifiers)


def test_the_description_is_served(client: Client) -> None:
    assert client.get(f"{API}/openapi.json").json() == json.loads(json.dumps(openapi()))
    names = {name for name in vars(Endpoints) if not name.startswith("_")}
    assert names - {"gallery", "placed"} <= {
        getattr(route.answer, "__name__", "") for route in ROUTES
    }


def check(schema: dict[str, Any], value: Any, schemas: dict[str, Any]) -> None:
    """Fails where a value is not what its schema says."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    kinds_of = schema.get("type", [])
    kinds_of = kinds_of if isinstance(kinds_of, list) else [kinds_of]
    python: dict[str, Callable[[Any], bool]] = {
        "integer": lambda v: type(v) is int,
        "number": lambda v: type(v) in (int, float),
        "string": lambda v: isinstance(v, str),
        "boolean": lambda v: isinstance(v, bool),
        "null": lambda v: v is None,
        "array": lambda v: isinstance(v, list),
        "object": lambda v: isinstance(v, dict),
    }
    assert not kinds_of or any(python[kind](value) for kind in kinds_of), (schema, value)
    if isinstance(value, list):
        for item in value:
            check(schema["items"], item, schemas)
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) == set(schema["properties"])
        for name, item in value.items():
            check(schema["properties"][name], item, schemas)


def likely(parameter: Parameter) -> st.SearchStrategy[str]:
    """Values as the description allows them, and others."""
    if parameter.choices:
        good = st.sampled_from([str(choice) for choice in parameter.choices])
    elif parameter.kind == "integer":
        good = st.integers(int(parameter.least), int(min(parameter.most, 1000))).map(str)
    elif parameter.kind == "number":
        good = st.floats(0, 1).map(lambda value: f"{value:.4f}")
    elif parameter.kind == "boolean":
        good = st.sampled_from(["true", "false"])
    else:
        good = st.sampled_from(["", "class 1", "png", "Class"])
    return st.one_of(good, good, good, st.text(max_size=300))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Route, str, dict[str, str], bytes]:
    route = draw(st.sampled_from(ROUTES))
    wanted = draw(st.lists(st.sampled_from(route.parameters), unique=True))
    values = {parameter.name: draw(likely(parameter)) for parameter in wanted}
    if draw(st.integers(0, 9)) == 0:
        values[draw(st.text(min_size=1, max_size=20))] = draw(st.text(max_size=20))
    number = draw(st.one_of(st.integers(0, 40).map(str), st.text(max_size=30)))
    body = draw(st.one_of(st.just(picture_bytes()), st.binary(max_size=300)))
    return route, number, values, body


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(request=requests())
def test_any_request_gets_what_the_description_says(
    client: Client, request: tuple[Route, str, dict[str, str], bytes]
) -> None:
    route, number, values, body = request
    path = PREFIX + route.path.replace("{id}", quote(number, safe="", errors="replace"))
    options: dict[str, Any] = {
        "params": {k: v.encode("utf-8", "replace").decode() for k, v in values.items()}
    }
    if route.body:
        options |= {"content": body, "headers": {"content-type": "image/png"}}
    answer = client.request(route.method, path, **options)
    described = openapi()
    operation = described["paths"][PREFIX + route.path][route.method.lower()]
    if "{id}" in route.path and ("/" in number or number in ("", ".", "..")):
        assert answer.status_code < 500  # another address, or none
        return
    responses = operation["responses"]
    assert str(answer.status_code) in responses, answer.text
    content = responses[str(answer.status_code)]["content"]
    kind = answer.headers["content-type"]
    assert kind in content
    if "schema" in content[kind]:
        check(content[kind]["schema"], answer.json(), described["components"]["schemas"])
