"""A request's body as bytes: bounded in length and time, and nothing but a picture's bytes."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from cbml.gallery.parameters import Refusal

__all__ = ["BODY_LIMIT", "READ_SECONDS", "UPLOADS", "Uploads"]

BODY_LIMIT = 32 * 1024 * 1024
READ_SECONDS = 10.0
UPLOADS = 8


class Uploads:
    """Reads bodies, a few at a time.

    Args:
        body_limit: bytes of a body at most.
        read_seconds: until it must have come.
        at_once: bodies being read at a time; more are turned away.
    """

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
        self.reading = 0

    async def read(self, request: Request) -> bytes:
        """The body of a request; raises Refusal where it is not wanted.

        Args:
            request: whose body has not been read yet.
        """
        self._check_headers(request)
        if self.reading >= self.at_once:
            raise Refusal(429, "too many uploads at once; try again in a second")
        self.reading += 1
        try:
            async with asyncio.timeout(self.read_seconds):
                return await self._collected(request)
        except TimeoutError:
            raise Refusal(408, f"the body did not come within {self.read_seconds:g} s") from None
        except ClientDisconnect:
            raise Refusal(400, "the body broke off") from None
        finally:
            self.reading -= 1

    async def _collected(self, request: Request) -> bytes:
        pieces: list[bytes] = []
        length = 0
        async for piece in request.stream():
            length += len(piece)
            if length > self.body_limit:
                raise Refusal(413, self._too_long())
            pieces.append(piece)
        if not length:
            raise Refusal(422, "the body is empty; send the bytes of a picture")
        return b"".join(pieces)

    def _check_headers(self, request: Request) -> None:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if not (kind.startswith("image/") or kind == "application/octet-stream"):
            raise Refusal(415, "send the picture's bytes with Content-Type: image/jpeg or the like")
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 19):
            raise Refusal(400, "Content-Length is not a number")
        if int(length) > self.body_limit:
            raise Refusal(413, self._too_long())

    def _too_long(self) -> str:
        return f"the picture is larger than {self.body_limit >> 20} MB"
