"""A gallery on a port of this machine, until somebody stops it."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cbml.errors import BadData

__all__ = ["listen", "serve_app"]

HEADER_SECONDS = 10.0
# Silent connections beyond these make room for new ones.
SILENT = 200


class _ImpatientProtocol(H11Protocol):
    """Closes connections whose request does not get complete; uvicorn itself waits for ever.

    Connections that say nothing cost a file each, and a system has few of those: when there are
    many, the one that has been silent for longest is closed for the one that comes.
    """

    _silent: ClassVar[dict["_ImpatientProtocol", None]] = {}  # oldest first
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()
        if len(self._silent) > SILENT:
            oldest = next(iter(self._silent))
            oldest._stop_watching()
            oldest.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock with the first byte of a request, stop it with the last of its head."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_watching()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.close)
            self._silent[self] = None

    def _stop_watching(self) -> None:
        self._silent.pop(self, None)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises BadData where it cannot.

    Args:
        host: The address to bind.
        port: 0 for any free one.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise BadData(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --port"
        ) from None


def serve_app(app: ASGIApp, listening: socket.socket, *, started: Callable[[], None]) -> None:
    """Answer requests until SIGINT or SIGTERM; those under way are finished first.

    Args:
        app: The application.
        listening: As `listen` gave it.
        started: Called when the first request can be answered.
    """
    config = uvicorn.Config(
        app,
        http=_ImpatientProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=16 * 1024,
    )
    started()
    uvicorn.Server(config).run(sockets=[listening])
