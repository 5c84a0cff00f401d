"""The gallery as an ASGI application."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp

from cbml.gallery.endpoints import Call, Endpoints, Jpeg
from cbml.gallery.gallery import Gallery
from cbml.gallery.guard import Guard, error_body
from cbml.gallery.metrics import Metrics
from cbml.gallery.openapi import PREFIX, openapi
from cbml.gallery.parameters import Refusal, read_parameters
from cbml.gallery.routes import ROUTES, Route
from cbml.gallery.uploads import Uploads

__all__ = ["make_app"]

_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_LOG = logging.getLogger("cbml.gallery")

Answering = Callable[[Request], Awaitable[Response]]


def make_app(
    gallery: Gallery,
    *,
    hosts: Collection[str],
    compare: Gallery | None = None,
    uploads: Uploads | None = None,
) -> ASGIApp:
    """The service.

    Args:
        gallery: what to serve.
        hosts: names it may be called by, as `allowed_hosts` gives them.
        compare: a second gallery of the same pictures, by another model.
        uploads: limits of what is sent.
    """
    service = _Service(gallery, compare, uploads or Uploads())
    routes = [
        StarletteRoute(PREFIX + route.path, service.answering(route), methods=[route.method])
        for route in ROUTES
    ]
    described = json.dumps(openapi()).encode()
    fixed = {f"{PREFIX}/openapi.json": (described, "application/json"), **_page()}
    routes += [
        StarletteRoute(path, _constant(path, content, kind))
        for path, (content, kind) in fixed.items()
    ]
    routes += [
        StarletteRoute("/health", service.health),
        StarletteRoute("/metrics", service.report),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_error, Refusal: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return Guard(app, hosts, service.metrics)


class _Service:
    """Answers requests in threads: one for vectors and model, two for files of pictures.

    One thread is enough for the former, since faiss and torch use all cores by themselves; several
    searches at once would only take turns on them, with more memory.
    """

    def __init__(self, gallery: Gallery, compare: Gallery | None, uploads: Uploads) -> None:
        self.endpoints = Endpoints(gallery, compare, body_limit=uploads.body_limit)
        self.gallery, self.uploads, self.metrics = gallery, uploads, Metrics()
        self.pools = {
            "search": ThreadPoolExecutor(1, thread_name_prefix="cbml-search"),
            "pictures": ThreadPoolExecutor(2, thread_name_prefix="cbml-pictures"),
        }

    def answering(self, route: Route) -> Answering:
        async def answer(request: Request) -> Response:
            request.scope["cbml_route"] = PREFIX + route.path
            values = read_parameters(request.query_params.multi_items(), route.parameters)
            body = await self.uploads.read(request) if route.body else b""
            call = Call(request.path_params.get("id", ""), values, body)
            tags = request.headers.get("if-none-match", "")
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self.pools[route.work], lambda: _response(route.answer(self.endpoints, call), tags)
            )

        return answer

    async def health(self, request: Request) -> Response:
        request.scope["cbml_route"] = "/health"
        return _json({"status": "ok", "pictures": len(self.gallery)})

    async def report(self, request: Request) -> Response:
        request.scope["cbml_route"] = "/metrics"
        gauges = {
            "cbml_pictures": len(self.gallery),
            "cbml_thumbnail_cache_bytes": self.endpoints.cache.size,
        }
        text = self.metrics.text(gauges)
        return Response(text, media_type="text/plain; version=0.0.4")


def _response(answer: Any, known_tags: str) -> Response:
    if not isinstance(answer, Jpeg):
        return _json(answer)
    tag = f'"{answer.tag}"'
    headers = {"etag": tag, "cache-control": "private, max-age=3600"}
    if tag in known_tags:
        return Response(status_code=304, headers=headers)
    return Response(answer.content(), media_type="image/jpeg", headers=headers)


def _json(value: Any) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), media_type="application/json")


def _page() -> dict[str, tuple[bytes, str]]:
    """Address -> content of the page's files; their names are fixed when the service starts."""
    folder = resources.files("cbml.gallery") / "page"
    files: dict[str, tuple[bytes, str]] = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        kind = _KINDS.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            files[path] = file.read_bytes(), f"{kind}; charset=utf-8"
    return files


def _constant(path: str, content: bytes, kind: str) -> Answering:
    async def answer(request: Request) -> Response:
        request.scope["cbml_route"] = path
        return Response(content, headers={"content-type": kind, "cache-control": "no-cache"})

    return answer


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    headers = {"retry-after": "1"} if error.status == 429 else {}
    if error.status in (408, 413, 429):
        headers["connection"] = "close"  # the rest of the body is not waited for
    body = error_body(error.status, error.message)
    return Response(body, error.status, headers, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = error_body(error.status_code, str(error.detail))
    return Response(body, error.status_code, error.headers, media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s: %r", request.method, request.url.path, error)
    status, message = 500, "an error of ours"
    if isinstance(error, ConnectionError):
        status, message = 503, "the server of the vectors cannot be reached"
    return Response(error_body(status, message), status, media_type="application/json")
