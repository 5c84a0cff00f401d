"""A request's body as bytes: bounded in length and time, and nothing but an image's bytes."""

import asyncio
import time

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

__all__ = ["BODY_LIMIT", "READ_SECONDS", "UPLOADS", "Refusal", "Uploads", "drain"]

BODY_LIMIT = 32 * 1024 * 1024
READ_SECONDS = 10.0
UPLOADS = 8
DRAIN_SECONDS = 5.0


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
            raise Refusal(408, f"the body did not come within {self.read_seconds:g} s") from None
        except ClientDisconnect:
            raise Refusal(400, "the body broke off") from None

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


async def drain(receive: Receive, *, most: int = 2 * BODY_LIMIT) -> None:
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
