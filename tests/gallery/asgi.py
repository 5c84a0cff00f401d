"""A client that speaks to an application in this process, byte for byte as a server would."""

import asyncio
import threading
from types import TracebackType
from typing import Any
from urllib.parse import unquote_to_bytes

import httpx
from starlette.types import ASGIApp


class Client:
    """Requests as httpx makes them, answered by an ASGI application in a thread of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers = {"host": "localhost"}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Client":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.app.app.state.service.close()  # type: ignore[attr-defined]  # behind the guard
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        request = httpx.Request(method, "http://localhost" + path, headers=headers, **options)
        return self._answer(method, request.url.raw_path, request.headers.raw, request.read())

    def raw(self, path: str) -> httpx.Response:
        """A path as it is, which httpx would tidy up."""
        return self._answer("GET", path.encode(), [(b"host", b"localhost")], b"")

    def _answer(
        self, method: str, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> httpx.Response:
        given = self._run(method, path, headers, body)
        return asyncio.run_coroutine_threadsafe(given, self._loop).result(120)

    async def _run(
        self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> httpx.Response:
        path, _, query = target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            # As uvicorn: decoded, whatever comes out.
            "path": unquote_to_bytes(path).decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }
        pieces = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return pieces.pop(0) if pieces else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=content)
