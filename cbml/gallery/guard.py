"""What stands before every request: who may ask, how many at once, and the headers of answers."""

import ipaddress
import json
import time
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cbml.gallery.metrics import Metrics

__all__ = ["HEADERS", "Guard", "allowed_hosts", "error_body"]

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
_WILDCARDS = ("0.0.0.0", "::", "")


def allowed_hosts(host: str, more: Collection[str] = ()) -> set[str]:
    """The names a request may call this service by.

    A page of another site can make its own name lead to this machine (DNS rebinding); its requests
    then come with that name, and are refused.

    Args:
        host: the address the service binds to.
        more: further names; "*" allows all.
    """
    names = {"localhost", "127.0.0.1", "::1", host.lower(), *(name.lower() for name in more)}
    return names | ({"any address"} if host in _WILDCARDS else set())


def error_body(status: int, message: str) -> bytes:
    """The JSON of an error.

    Args:
        status: its HTTP code.
        message: one line.
    """
    error = {"status": status, "message": " ".join(message.split())}
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


class Guard:
    """Middleware that refuses strangers, bounds what is under way, and completes every answer.

    Args:
        app: what it guards.
        hosts: as `allowed_hosts` gives them.
        metrics: where requests are counted.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], metrics: Metrics) -> None:
        self.app, self.hosts, self.metrics = app, hosts, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request.

        Args:
            scope: as ASGI defines it.
            receive: likewise.
            send: likewise.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def completed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        refusal = self._refusal(scope)
        self.metrics.in_flight += 1
        try:
            if refusal is None:
                await self.app(scope, receive, completed)
            else:
                await _answer(completed, *refusal)
        finally:
            self.metrics.in_flight -= 1
            seconds = time.perf_counter() - start
            self.metrics.count(scope.get("cbml_route", "other"), status, seconds)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return 431, "the head of the request is too long"
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self._known(hosts[0]):
            return 421, "this service does not answer to that Host; see --allow-host"
        site = headers.get(b"sec-fetch-site", ["none"])[0]
        visit = headers.get(b"sec-fetch-mode", [""])[0] == "navigate" and scope["method"] == "GET"
        if site not in ("same-origin", "none") and not visit:
            return 403, "requests from pages of other sites are not answered"
        if self.metrics.in_flight >= IN_FLIGHT and scope["path"] != "/health":
            return 429, "too many requests at once; try again in a second"
        return None

    def _known(self, host: str) -> bool:
        name, port = _split_host(host)
        if name is None or (port and not (port.isascii() and port.isdigit())):
            return False
        return (
            name in self.hosts
            or "*" in self.hosts
            or ("any address" in self.hosts and _is_address(name))
        )


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
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
