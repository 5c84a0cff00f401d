"""The gallery as an application on a port: galleries that follow their folders, their threads."""

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import resources
from typing import Any, ClassVar, Literal, TypeVar
from weakref import WeakKeyDictionary

import h11
import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request
from numpy.typing import NDArray
from starlette.responses import Response
from starlette.types import ASGIApp
from torch import Tensor
from uvicorn.protocols.http.h11_impl import H11Protocol

from cbml import __version__
from cbml.data import PIXEL_LIMIT
from cbml.errors import BadData
from cbml.files import MANIFEST
from cbml.gallery.decoding import DecodingFailed, ImageDecoder
from cbml.gallery.gallery import DEPTH, Gallery
from cbml.gallery.middleware import ERROR_HANDLERS, Guard, Metrics, Refusal, Uploads
from cbml.gallery.results import MAX_RESULTS, Query
from cbml.gallery.routes import PREFIX, router
from cbml.gallery.schemas import PAGE, known_parameters
from cbml.gallery.scores import counterparts, probability_check
from cbml.gallery.thumbnails import THUMBNAIL_SIZES, ByteCache, Signature

CACHE_BYTES = 64 * 1024 * 1024
# Seconds between two looks at whether a gallery's folder was brought up to date.
LOOK_EVERY = 1.0
# More images would keep searches waiting for longer without being embedded faster.
EMBEDDED_AT_ONCE = 8
HEADER_SECONDS = 10.0
# Silent connections beyond these make room for new ones.
SILENT = 200
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_LOG = logging.getLogger("cbml.gallery")

T = TypeVar("T")
Which = Literal["main", "compare"]


def make_app(gallery: Gallery, **options: Any) -> ASGIApp:
    """The application alone, with the options of `make_service`."""
    return make_service(gallery, **options)[1]


def make_service(
    gallery: Gallery,
    *,
    hosts: Collection[str],
    compare: Gallery | None = None,
    uploads: Uploads | None = None,
    token: str | None = None,
    program: str = "cbml",
) -> tuple["Service", ASGIApp]:
    """The service and its application.

    Args:
        gallery: What to serve.
        hosts: Names it may be called by, as `allowed_hosts` gives them.
        compare: A second gallery of the same images, by another model.
        uploads: Limits of what is sent.
        token: Every request for data has to carry it; None asks for none.
        program: How to call `cbml` in a terminal, for the commands that the page shows.
    """
    service = Service(gallery, compare, uploads or Uploads(), is_open=token is None)
    service.program = program
    app = FastAPI(
        title="cbml serve",
        version=__version__,
        docs_url=None,  # they load their scripts from another site
        redoc_url=None,
        openapi_url=f"{PREFIX}/openapi.json",
        redirect_slashes=False,
        exception_handlers=ERROR_HANDLERS,
    )
    app.state.service = service
    app.include_router(router)
    page = _page()
    for path, (content, kind) in page.items():
        app.add_api_route(path, _constant(content, kind), include_in_schema=False)
    app.state.parameters = known_parameters(app.openapi())
    open_paths = {*page, "/health"}
    return service, Guard(app, hosts, service.metrics, token=token, open_paths=open_paths)


class Service:
    """The galleries that are served, and the threads that work on requests.

    One thread searches, since faiss and torch use all cores by themselves; several searches at
    once would only take turns on them, with more memory. Two read files of images. Uploads are
    decoded by processes of their own, for which as many threads wait.
    """

    def __init__(
        self, gallery: Gallery, compare: Gallery | None, uploads: Uploads, *, is_open: bool
    ) -> None:
        self.main, self.second = gallery, compare
        self.uploads, self.metrics, self.is_open = uploads, Metrics(), is_open
        self.program = "cbml"
        self.cache, self.decoder = ByteCache(CACHE_BYTES), ImageDecoder()
        # Images that were decoded and not embedded yet.
        self._waiting: WeakKeyDictionary[Gallery, deque[tuple[Tensor, Signature, Future[Query]]]]
        self._waiting = WeakKeyDictionary()
        self.moves: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._pools = {
            "search": ThreadPoolExecutor(1, thread_name_prefix="cbml-search"),
            "images": ThreadPoolExecutor(2, thread_name_prefix="cbml-images"),
            "decode": ThreadPoolExecutor(uploads.at_once, thread_name_prefix="cbml-decode"),
        }
        self._checked = time.monotonic()
        self._versions = {which: _version(self.gallery(which)) for which in self._served()}
        self._find_counterparts()

    async def run(self, pool: str, work: Callable[[], T]) -> T:
        """The result of a function in one of the pools."""
        return await asyncio.get_running_loop().run_in_executor(self._pools[pool], work)

    async def searching(self, work: Callable[[], T]) -> T:
        """The result of a function that uses the galleries, brought up to date before."""
        await self.bring_up_to_date()
        return await self.run("search", work)

    async def bring_up_to_date(self) -> None:
        """Open what has changed since, now and then."""
        if time.monotonic() - self._checked > LOOK_EVERY:
            await self.run("search", self._look)

    async def decoded(self, request: Request, galleries: list[Gallery]) -> list[Query]:
        """The image in the body of a request, as a query to each of some galleries."""
        with self.uploads:
            body = await self.uploads.read(request)
            wanted = [gallery.state.model["preprocessing"] for gallery in galleries]
            try:
                image = await self.run("decode", lambda: self.decoder.decode(body, wanted))
            except DecodingFailed as failure:
                raise Refusal(failure.status, f"the image: {failure.reason}") from None

        pairs = zip(galleries, image.framed, strict=True)
        embedded = [self._embedded(each, framed, image.signature) for each, framed in pairs]
        return list(await asyncio.gather(*embedded))

    async def _embedded(
        self, gallery: Gallery, framed: NDArray[np.uint8], signature: Signature
    ) -> Query:
        """A decoded image as a query; images that wait at the same time are embedded together."""
        waiting = self._waiting.setdefault(gallery, deque())
        answer: Future[Query] = Future()
        waiting.append((torch.from_numpy(framed.copy()), signature, answer))

        def work() -> None:
            # Whoever comes first takes all that wait; the others then find nothing left to do.
            batch = [waiting.popleft() for _ in range(min(len(waiting), EMBEDDED_AT_ONCE))]
            if not batch:
                return
            images, signatures, answers = zip(*batch, strict=True)
            try:
                for future, query in zip(
                    answers, gallery.framed_queries(images, signatures), strict=True
                ):
                    future.set_result(query)
            except Exception as error:  # each of them hears of it
                for future in answers:
                    future.set_exception(error)

        await self.run("search", work)
        return await asyncio.wrap_future(answer)

    def gallery(self, which: Which) -> Gallery:
        """The gallery that is meant."""
        if which == "main":
            return self.main
        if self.second is None:
            raise Refusal(400, "which: one gallery is served; start with --compare for a second")
        return self.second

    def describe(self, which: Which) -> dict[str, Any]:
        """What is served, as the route `info` answers."""
        gallery = self.gallery(which)
        state, model = gallery.state, gallery.state.model
        return {
            "name": gallery.name,
            "folder": str(gallery.folder),
            "program": self.program,
            "source": state.source,
            "version": __version__,
            "images": len(gallery),
            "labeled": int((gallery.codes >= 0).sum()),
            "labels": len(gallery.label_names),
            "trained_on": None if state.trained is None else int(state.trained.sum()),
            "known_labels": state.known_labels,
            "bad": len(state.bad),
            "dim": gallery.dim,
            "model": {
                **{name: model[name] for name in ("backbone", "pooling", "provenance")},
                "crop": model["preprocessing"]["crop"],
            },
            "has_probability": gallery.has_probability,
            "probability_check": probability_check(gallery),
            "has_map": state.layout is not None,
            "has_scores": state.scores is not None,
            "compare": None if self.second is None else self.second.name,
            "limits": {
                "k": MAX_RESULTS,
                "page": PAGE,
                "body_bytes": self.uploads.body_limit,
                "pixels": PIXEL_LIMIT,
                "depth": DEPTH,
                "thumbnail_sizes": list(THUMBNAIL_SIZES),
            },
        }

    def warm_up(self) -> None:
        """Do once what would make the first requests slow."""
        self.decoder.warm_up()
        for which in self._served():
            # In the thread that will search: each thread that computes brings OpenMP threads of its
            # own, and where there are more of those than cores they no longer spin but sleep.
            self._pools["search"].submit(self.gallery(which).warm_up).result()

    def close(self) -> None:
        """End the processes that decode."""
        self.decoder.close()

    def _served(self) -> tuple[Which, ...]:
        return ("main",) if self.second is None else ("main", "compare")

    def _look(self) -> None:
        """Open what was brought up to date; only the thread that searches does this."""
        self._checked = time.monotonic()
        for which in self._served():
            gallery = self.gallery(which)
            version = _version(gallery)
            if version in (None, self._versions[which]):
                continue
            try:
                fresh = gallery.reopened()
            except ValueError as error:  # the old one is still good
                _LOG.warning("%s: not brought up to date: %s", gallery.folder, error)
            else:
                if which == "main":
                    self.main = fresh
                else:
                    self.second = fresh
                gallery.close()
                self._find_counterparts()
            self._versions[which] = version

    def _find_counterparts(self) -> None:
        if self.second is not None:
            main, second = self.main, self.second
            self.moves = counterparts(main, second), counterparts(second, main)


def _version(gallery: Gallery) -> tuple[int, int, int] | None:
    """Changes with every commit: the manifest is a new file then."""
    try:
        status = (gallery.folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _page() -> dict[str, tuple[bytes, str]]:
    """Path -> content of the page's files; their names are fixed when the service starts."""
    folder = resources.files("cbml.gallery") / "page"
    files: dict[str, tuple[bytes, str]] = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        kind = _KINDS.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            files[path] = file.read_bytes(), f"{kind}; charset=utf-8"
    return files


def _constant(content: bytes, kind: str) -> Callable[[], Any]:
    async def answer() -> Response:
        return Response(content, headers={"content-type": kind, "cache-control": "no-cache"})

    return answer


class _ImpatientProtocol(H11Protocol):
    """Closes connections whose request does not get complete; uvicorn itself waits for ever.

    Connections that say nothing cost a file each, and a system has few of those: when there are
    many, the one that has been silent for longest is closed for the one that comes. A connection
    that waits for its next request is silent, too. It is kept for longer than clients keep theirs,
    most of them 5 s: who closes last never cuts off a request that is on its way.
    """

    room: ClassVar[int] = 4 * SILENT  # files that this process may open; `serve_app` counts them
    _silent: ClassVar[dict["_ImpatientProtocol", None]] = {}  # oldest first
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()
        many = len(self.connections) > self.room // 2
        if self._silent and (many or len(self._silent) > min(SILENT, self.room // 4)):
            oldest = next(iter(self._silent))
            oldest._stop_watching()
            oldest.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock when a request is waited for, stop it with the last byte of its head."""
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


def _room() -> int:
    """How many files this process may still open."""
    try:
        import resource
    except ImportError:  # Windows does not count connections among files
        return _ImpatientProtocol.room
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ImpatientProtocol.room if limit < 0 else limit - len(os.listdir("/dev/fd"))


def serve_app(app: ASGIApp, listening: socket.socket, *, started: Callable[[], None]) -> None:
    """Answer requests until SIGINT or SIGTERM; those under way are finished first.

    Args:
        app: The application.
        listening: As `listen` gave it.
        started: Called when the first request can be answered.
    """
    _ImpatientProtocol.room = room = _room()
    config = uvicorn.Config(
        app,
        # As many are accepted at once. With no file left, asyncio would write thousands of lines.
        backlog=max(1, min(512, room // 4)),
        http=_ImpatientProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(2 * HEADER_SECONDS),  # the clock of the protocol above is faster
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=16 * 1024,
    )
    started()
    uvicorn.Server(config).run(sockets=[listening])
