"""What stands before every request: who may ask, how many at once, limits of bodies, errors."""

import asyncio
import hmac
import ipaddress
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_LIMIT = 32 * 1024 * 1024
READ_SECONDS = 10.0
UPLOADS = 16
DRAIN_SECONDS = 5.0
IN_FLIGHT = 64
HEADER_BYTES = 32 * 1024
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
_LOG = logging.getLogger("cbml.gallery")
_WILDCARDS = ("0.0.0.0", "::", "")

Headers = Mapping[bytes, list[str]]


def allowed_hosts(host: str, more: Collection[str] = ()) -> set[str]:
    """The names a request may call a service by.

    A page of another site can make its own name lead to this machine (DNS rebinding); its requests
    then come with that name, and are refused.

    Args:
        host: The address the service binds to.
        more: Further names; "*" allows all.
    """
    names = {"localhost", "127.0.0.1", "::1", host.lower(), *(name.lower() for name in more)}
    return names | ({"any address"} if host in _WILDCARDS else set())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a service.

    Args:
        host: The address the service binds to.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def error_body(status: int, message: str) -> bytes:
    """The JSON of an error."""
    error = {"status": status, "message": " ".join(message.split())}
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


class Metrics:
    """Requests by route and status, their time, and how many are under way, as Prometheus text."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, route: str, status: int, seconds: float) -> None:
        """Note a request; `route` is that of the table, so that there are few of them."""
        with self._lock:
            self._requests[route, status] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]  # a counter of floats

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything so far, and further numbers by name."""
        with self._lock:
            requests, seconds = sorted(self._requests.items()), sorted(self._seconds.items())
        lines = ["# TYPE cbml_requests_total counter"]
        lines += [
            f'cbml_requests_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in requests
        ]
        lines.append("# TYPE cbml_request_seconds_total counter")
        lines += [
            f'cbml_request_seconds_total{{route="{route}"}} {total:.6f}' for route, total in seconds
        ]
        for name, value in {"cbml_requests_in_flight": self.in_flight, **gauges}.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


class Guard:
    """Middleware that refuses strangers, bounds what is under way, and completes every answer.

    `hosts` are those of `allowed_hosts`; with a `token`, every request has to carry it, but for
    `open_paths`: the files of the page, which ask for it, and the health of the service.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        metrics: Metrics,
        *,
        token: str | None = None,
        open_paths: Collection[str] = (),
    ) -> None:
        self.app, self.hosts, self.metrics = app, hosts, metrics
        self.token, self.open_paths = token, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, finished = time.perf_counter(), 500, False

        async def whole_body() -> Message:
            nonlocal finished
            message = await receive()
            finished = not message.get("more_body", False)
            return message

        async def completed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            elif status >= 400 and not finished and _has_body(scope):
                await send({**message, "more_body": True})
                await _drain(receive)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        refusal = self._refusal(scope)
        self.metrics.in_flight += 1
        try:
            if refusal is None:
                await self.app(scope, whole_body, completed)
            else:
                await _answer(completed, *refusal)
        finally:
            self.metrics.in_flight -= 1
            seconds = time.perf_counter() - start
            self.metrics.count(_route(scope), status, seconds)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return 431, "the head of the request is too long"
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self._known(hosts[0]):
            return 421, "this service does not answer to that Host; see --allow-host"
        if _is_foreign(headers, hosts[0], scope["method"]):
            return 403, "requests from pages of other sites are not answered"
        if not (scope["path"] in self.open_paths or self._authorized(headers)):
            return 401, "this service asks for its token: Authorization: Bearer TOKEN"
        if self.metrics.in_flight >= IN_FLIGHT and scope["path"] != "/health":
            return 429, "too many requests at once; try again in a second"
        return None

    def _authorized(self, headers: Headers) -> bool:
        if self.token is None:
            return True
        given = headers.get(b"authorization", [""])
        scheme, _, token = given[0].partition(" ")
        # In constant time: how long a refusal takes must not tell how much of the token is right.
        same = hmac.compare_digest(token.strip().encode(), self.token.encode())
        return len(given) == 1 and scheme.lower() == "bearer" and same

    def _known(self, host: str) -> bool:
        name, port = _split_host(host)
        if name is None or (port and not (port.isascii() and port.isdigit())):
            return False
        return (
            name in self.hosts
            or "*" in self.hosts
            or ("any address" in self.hosts and _is_address(name))
        )


def _is_foreign(headers: Headers, host: str, method: str) -> bool:
    """Whether a page of another site makes the request; following a link to here is allowed."""
    for origin in headers.get(b"origin", []):  # older browsers send only this one
        scheme, separator, name = origin.lower().partition("://")
        if not separator or scheme not in ("http", "https") or name != host.lower():
            return True
    site = headers.get(b"sec-fetch-site", ["none"])[0]
    visit = headers.get(b"sec-fetch-mode", [""])[0] == "navigate" and method == "GET"
    return site not in ("same-origin", "none") and not visit


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _route(scope: Scope) -> str:
    """The path as in the table of routes: requests that fit none are counted as one."""
    return str(getattr(scope.get("route"), "path", "other"))


def _split_host(host: str) -> tuple[str | None, str]:
    """Name and port of a Host header; no name where it is malformed."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None, ""
        return name.lower(), port[1:]
    name, _, port = host.partition(":")
    return (name.lower() or None), port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _answer(send: Any, status: int, message: str) -> None:
    body = error_body(status, message)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Refusal(Exception):
    """A request that is answered by an error; `status` is its HTTP code, `message` one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Uploads:
    """Reads bodies, a few at a time; a place is held until the image has been decoded as well."""

    def __init__(
        self,
        *,
        body_limit: int = BODY_LIMIT,
        read_seconds: float = READ_SECONDS,
        at_once: int = UPLOADS,
    ) -> None:
        self.body_limit = body_limit
        self.read_seconds = read_seconds
        self.at_once = at_once
        self.taken = 0

    def __enter__(self) -> "Uploads":
        if self.taken >= self.at_once:
            raise Refusal(429, "too many uploads at once; try again in a second")
        self.taken += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.taken -= 1

    async def read(self, request: Request) -> bytes:
        """The body of a request; raises Refusal where it is not wanted."""
        self._check_headers(request)
        try:
            async with asyncio.timeout(self.read_seconds):
                return await self._collected(request)
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {self.read_seconds:g} s") from None
        except ClientDisconnect:
            raise Refusal(400, "the body is incomplete") from None

    async def _collected(self, request: Request) -> bytes:
        pieces: list[bytes] = []
        length = 0
        async for piece in request.stream():
            length += len(piece)
            if length > self.body_limit:
                raise Refusal(413, self._too_long())
            pieces.append(piece)
        if not length:
            raise Refusal(422, "the body is empty; send the bytes of an image")
        return b"".join(pieces)

    def _check_headers(self, request: Request) -> None:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if not (kind.startswith("image/") or kind == "application/octet-stream"):
            raise Refusal(415, "send the image's bytes with Content-Type: image/jpeg or the like")
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 19):
            raise Refusal(400, "Content-Length is not a number")
        if int(length) > self.body_limit:
            raise Refusal(413, self._too_long())

    def _too_long(self) -> str:
        return f"the image is larger than {self.body_limit >> 20} MB"


async def _drain(receive: Receive, *, most: int = 2 * BODY_LIMIT) -> None:
    """Read on after a refusal and throw away, for a while.

    A connection that is closed with bytes unread is reset, and the client never sees the answer.
    """
    deadline, length = time.monotonic() + DRAIN_SECONDS, 0
    while length < most:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                message = await receive()
        except TimeoutError:
            return
        length += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return Response(error_body(status, message), status, headers, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    headers = {"retry-after": "1"} if error.status == 429 else {}
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not waited for
    return _error(error.status, error.message, headers)


async def _invalid(request: Request, error: Exception) -> Response:
    """What FastAPI has to say about parameters, in our words."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["loc"][0] == "path":
        return _error(404, "not the id of an image")
    reason = str(first["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return _error(400, f"{first['loc'][-1]}: {reason}")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return _error(error.status_code, str(error.detail), headers)


async def _failed(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s: %r", request.method, request.url.path, error)
    if isinstance(error, ConnectionError):
        return _error(503, "the vector server cannot be reached")
    return _error(500, "internal server error")


ERROR_HANDLERS: dict[int | type[Exception], Any] = {
    HTTPException: _http_error,
    Refusal: _refused,
    RequestValidationError: _invalid,
    Exception: _failed,
}
