"""The addresses of the service: each function reads its parameters and answers."""

import dataclasses
import functools
import hashlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from numpy.typing import NDArray
from starlette.responses import Response

from cbml.errors import BadData
from cbml.gallery import schemas
from cbml.gallery.gallery import Gallery
from cbml.gallery.middleware import Refusal
from cbml.gallery.results import Query, SearchOptions
from cbml.gallery.schemas import (
    BINARY_BODY,
    ERROR_RESPONSE,
    JPEG_RESPONSES,
    ImageId,
    Label,
    Limit,
    Offset,
    Options,
    Results,
    Served,
    Size,
    Started,
    Text,
    Which,
    check_parameters,
)
from cbml.gallery.scores import (
    compare_search,
    find_confusions,
    largest_differences,
    worst_queries,
)
from cbml.gallery.thumbnails import IMAGE_SIDE, file_jpeg

if TYPE_CHECKING:
    from cbml.gallery.service import Service

__all__ = ["PREFIX", "router"]

PREFIX = "/api/v1"
EXAMPLES = 6

router = APIRouter(dependencies=[Depends(check_parameters)], responses=ERROR_RESPONSE)
api = APIRouter(prefix=PREFIX)


def _in_turn(work: Callable[..., dict[str, Any]]) -> Callable[..., Awaitable[Response]]:
    """Answer with what a function gives that uses the galleries, in the thread that searches."""

    @functools.wraps(work)  # keeps the parameters, which FastAPI reads
    async def answer(service: "Service", **parameters: Any) -> Response:
        return _json(await service.searching(lambda: work(service, **parameters)))

    return answer


@api.get("/info", response_model=schemas.Info, summary="What is served.")
@_in_turn
def info(service: Served, which: Which = "main") -> dict[str, Any]:
    description: dict[str, Any] = service.describe(which)
    return description


@api.get("/labels", response_model=schemas.Labels, summary="The labels by name.")
@_in_turn
def labels(service: Served, which: Which = "main") -> dict[str, Any]:
    gallery = service.gallery(which)
    counts = Counter(gallery.codes.tolist())
    named = enumerate(gallery.label_names)
    return {"labels": [{"label": label, "count": counts[code]} for code, label in named]}


@api.get("/images", response_model=schemas.ImageList, summary="A page of the list of images.")
@_in_turn
def images(
    service: Served,
    offset: Offset = 0,
    limit: Limit = 100,
    label: Label = None,
    text: Text = "",
    which: Which = "main",
) -> dict[str, Any]:
    gallery = service.gallery(which)
    indices = gallery.matching(label=label, text=text)
    listed = [_entry(gallery, index) for index in _page(indices, offset, limit)]
    return {"total": len(indices), "offset": offset, "images": listed}


@api.get("/images/{id}", response_model=schemas.ImageDetail, summary="What is known of an image.")
@_in_turn
def image(service: Served, image_id: ImageId, which: Which = "main") -> dict[str, Any]:
    gallery, index = _find(service, which, image_id)
    found, trained = gallery.images[index], gallery.state.trained
    same = [other.id for other in gallery.images if other.sha256 == found.sha256]
    return {
        **dataclasses.asdict(gallery.query_info(index)),
        "width": found.width,
        "height": found.height,
        "bytes": found.bytes,
        "sha256": found.sha256,
        "trained_on": None if trained is None else bool(trained[index]),
        "same_content": [other for other in same if other != found.id],
    }


@api.get("/images/{id}/thumbnail", responses=JPEG_RESPONSES, summary="An image made small.")
async def thumbnail(
    request: Request, service: Served, image_id: ImageId, size: Size = 192, which: Which = "main"
) -> Response:
    return await _jpeg(request, service, which, image_id, size)


@api.get("/images/{id}/image", responses=JPEG_RESPONSES, summary="An image to look at.")
async def full_size(
    request: Request, service: Served, image_id: ImageId, which: Which = "main"
) -> Response:
    return await _jpeg(request, service, which, image_id, IMAGE_SIDE)


@api.get(
    "/images/{id}/search",
    response_model=schemas.TimedSearchResponse,
    summary="Search with an image of the gallery.",
)
@_in_turn
def search_with_image(
    service: Served, image_id: ImageId, options: Options, start: Started, which: Which = "main"
) -> dict[str, Any]:
    gallery, _ = _find(service, which, image_id)
    return _search(gallery, gallery.image_query(image_id), options, start)


@api.post(
    "/search",
    response_model=schemas.TimedSearchResponse,
    openapi_extra=BINARY_BODY,
    summary="Search with the image in the body.",
)
async def search_with_upload(
    request: Request, service: Served, options: Options, start: Started, which: Which = "main"
) -> Response:
    await service.bring_up_to_date()
    gallery = service.gallery(which)
    (query,) = await service.decoded(request, [gallery])
    return _json(await service.run("search", lambda: _search(gallery, query, options, start)))


@api.get("/scores", response_model=schemas.Scores, summary="Scores of all labeled images.")
@_in_turn
def scores(service: Served, which: Which = "main") -> dict[str, Any]:
    found = service.gallery(which).state.scores
    if found is None:
        raise Refusal(404, "this gallery has no scores: no two images share a label")
    totals: dict[str, Any] = found.totals
    return totals


@api.get("/worst", response_model=schemas.WorstQueries, summary="The worst queries, worst first.")
@_in_turn
def worst(
    service: Served,
    offset: Offset = 0,
    limit: Limit = 100,
    label: Label = None,
    which: Which = "main",
) -> dict[str, Any]:
    gallery = service.gallery(which)
    indices = _of_label(gallery, worst_queries(gallery), label)
    page = _page(indices, offset, limit)
    listed = [dataclasses.asdict(gallery.query_info(index)) for index in page]
    return {"total": len(indices), "offset": offset, "images": listed}


@api.get(
    "/confusions",
    response_model=schemas.Confusions,
    summary="Which labels are taken for which, most frequent first.",
)
@_in_turn
def confusions(
    service: Served,
    offset: Offset = 0,
    limit: Limit = 50,
    label: Label = None,
    which: Which = "main",
) -> dict[str, Any]:
    gallery = service.gallery(which)
    pairs = find_confusions(gallery)
    if label is not None:
        wanted = label.casefold()
        pairs = [
            pair for pair in pairs if wanted in (pair.label.casefold(), pair.taken_for.casefold())
        ]
    listed = [
        {
            "label": pair.label,
            "taken_for": pair.taken_for,
            "count": len(pair.queries),
            "examples": [
                {"query": _entry(gallery, query), "nearest": _entry(gallery, nearest)}
                for query, nearest in zip(
                    pair.queries[:EXAMPLES], pair.nearest[:EXAMPLES], strict=True
                )
            ],
        }
        for pair in pairs[offset : offset + limit]
    ]
    errors = sum(len(pair.queries) for pair in pairs)
    return {"total": len(pairs), "offset": offset, "errors": errors, "confusions": listed}


@api.get("/map", response_model=schemas.Map, summary="Every image's position on the map.")
@_in_turn
def map_positions(service: Served, which: Which = "main") -> dict[str, Any]:
    gallery = service.gallery(which)
    positions = gallery.state.layout
    if positions is None:
        raise Refusal(404, f"this gallery has no map; run {service.program} index again")
    return {
        "ids": gallery.ids.tolist(),
        "x": positions[:, 0].tolist(),
        "y": positions[:, 1].tolist(),
        "labels": gallery.codes.tolist(),
        "label_names": list(gallery.label_names),
    }


@api.get(
    "/differences",
    response_model=schemas.Differences,
    summary="The queries on which the two galleries differ most.",
)
@_in_turn
def differences(
    service: Served, offset: Offset = 0, limit: Limit = 50, label: Label = None
) -> dict[str, Any]:
    (main, second), (moves, _) = _both(service)
    indices = _of_label(main, largest_differences(main, second, moves), label)
    listed = [
        {
            **_entry(main, index),
            "average_precision": main.query_info(index).average_precision,
            "other_average_precision": second.query_info(int(moves[index])).average_precision,
        }
        for index in _page(indices, offset, limit)
    ]
    return {"total": len(indices), "offset": offset, "images": listed}


@api.get(
    "/compare/{id}",
    response_model=schemas.Comparison,
    summary="Search both galleries with an image of the main one.",
)
@_in_turn
def compare_image(
    service: Served, image_id: ImageId, start: Started, k: Results = 50
) -> dict[str, Any]:
    galleries, moves = _both(service)
    _, index = _find(service, "main", image_id)
    other = int(moves[0][index])
    if other < 0:
        raise Refusal(404, f"image {image_id}: not in the second gallery")
    second = galleries[1]
    queries = galleries[0].image_query(image_id), second.image_query(int(second.ids[other]))
    return _compare(galleries, queries, moves, k, start)


@api.post(
    "/compare",
    response_model=schemas.Comparison,
    openapi_extra=BINARY_BODY,
    summary="Search both galleries with the image in the body.",
)
async def compare_upload(
    request: Request, service: Served, start: Started, k: Results = 50
) -> Response:
    await service.bring_up_to_date()
    galleries, moves = _both(service)
    main, second = await service.decoded(request, list(galleries))
    work = lambda: _compare(galleries, (main, second), moves, k, start)  # noqa: E731
    return _json(await service.run("search", work))


@router.get("/health", include_in_schema=False)
async def health(service: Served) -> Response:
    return _json({"status": "ok"} | ({"images": len(service.main)} if service.is_open else {}))


@router.get("/metrics", include_in_schema=False)
async def metrics(service: Served) -> Response:
    gauges = {
        "cbml_images": len(service.main),
        "cbml_thumbnail_cache_bytes": service.cache.size,
        "cbml_uploads": service.uploads.taken,
    }
    return Response(service.metrics.text(gauges), media_type="text/plain; version=0.0.4")


router.include_router(api)


def _find(service: "Service", which: Which, image_id: int) -> tuple[Gallery, int]:
    """The gallery that is meant, and the index of the image in it."""
    gallery = service.gallery(which)
    try:
        return gallery, gallery.index_of(image_id)
    except BadData as error:
        raise Refusal(404, str(error)) from None


def _entry(gallery: Gallery, index: int) -> dict[str, Any]:
    found = gallery.images[index]
    return {"id": found.id, "name": found.name, "label": found.label}


def _both(service: "Service") -> tuple[tuple[Gallery, Gallery], Any]:
    if service.second is None:
        raise Refusal(404, "one gallery is served; start with --compare for a second one")
    return (service.main, service.second), service.moves


def _of_label(gallery: Gallery, indices: NDArray[np.int64], label: str | None) -> NDArray[np.int64]:
    return indices if label is None else indices[np.isin(indices, gallery.matching(label=label))]


def _page(indices: NDArray[np.int64], offset: int, limit: int) -> list[int]:
    page: list[int] = indices[offset : offset + limit].tolist()
    return page


def _search(gallery: Gallery, query: Query, options: SearchOptions, start: float) -> dict[str, Any]:
    try:
        response = gallery.search(query, options)
    except BadData as error:
        raise Refusal(400, str(error)) from None
    return {**response.as_dict(), "took_ms": _milliseconds(start)}


def _compare(
    galleries: tuple[Gallery, Gallery],
    queries: tuple[Query, Query],
    moves: Any,
    k: int,
    start: float,
) -> dict[str, Any]:
    main, second = compare_search(galleries, queries, moves, k)
    took = _milliseconds(start)
    return {"query": main["query"], "main": main, "compare": second, "took_ms": took}


def _milliseconds(start: float) -> float:
    return round(1000 * (time.perf_counter() - start), 1)


async def _jpeg(
    request: Request, service: "Service", which: Which, image_id: int, side: int
) -> Response:
    gallery, index = _find(service, which, image_id)
    found = gallery.images[index]
    # By the content, not by the id: two galleries share what they have in common.
    key = (found.path, found.sha256, side)
    tag = f'"{hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()[:24]}"'
    headers = {"etag": tag, "cache-control": "private, max-age=3600"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)

    def work() -> bytes:
        try:
            return service.cache.get(key, lambda: file_jpeg(found, side))
        except BadData as error:
            reason = getattr(error, "reason", "cannot be read")
            raise Refusal(
                404, f"image {found.id}: {reason}; run {service.program} index again"
            ) from None

    return Response(await service.run("images", work), media_type="image/jpeg", headers=headers)


def _json(value: Any) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), media_type="application/json")
