"""The addresses of the service: each function reads its parameters and answers."""

import dataclasses
import hashlib
import json
import shlex
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from numpy.typing import NDArray
from starlette.responses import Response

from cbml import __version__
from cbml.data import PIXEL_LIMIT
from cbml.errors import BadData
from cbml.gallery import schemas
from cbml.gallery.compare import compare_search, largest_differences
from cbml.gallery.gallery import DEPTH, Gallery
from cbml.gallery.parameters import (
    PAGE,
    ImageId,
    Label,
    Limit,
    Offset,
    Options,
    Results,
    Served,
    Size,
    Text,
    Which,
    check_parameters,
)
from cbml.gallery.results import MAX_RESULTS, Query, SearchOptions
from cbml.gallery.thumbnails import IMAGE_SIDE, THUMBNAIL_SIZES, file_jpeg
from cbml.gallery.uploads import Refusal

if TYPE_CHECKING:
    from cbml.gallery.service import Service

__all__ = ["PREFIX", "router"]

PREFIX = "/api/v1"
EXAMPLES = 6


_ERROR: dict[int | str, dict[str, Any]] = {
    "default": {"model": schemas.ErrorResponse, "description": "What is wrong, in one line."}
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}
_IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"image/*": _BYTES, "application/octet-stream": _BYTES},
    }
}
_JPEG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {}}, "description": "The image."},
    304: {"description": "The client has it already."},
}
router = APIRouter(dependencies=[Depends(check_parameters)], responses=_ERROR)
api = APIRouter(prefix=PREFIX)


@api.get("/info", response_model=schemas.Info, summary="What is served.")
async def info(service: Served, which: Which = "main") -> Response:
    def work() -> dict[str, Any]:
        gallery = service.gallery(which)
        state, model = gallery.state, gallery.state.model
        calibration = state.calibration
        return {
            "name": gallery.name,
            "folder": str(gallery.folder),
            "source": state.source,
            "version": __version__,
            "images": len(gallery),
            "labeled": int((gallery.codes >= 0).sum()),
            "labels": len(gallery.label_names),
            "bad": len(state.bad),
            "dim": gallery.dim,
            "model": {
                **{name: model[name] for name in ("backbone", "pooling", "provenance")},
                "crop": model["preprocessing"]["crop"],
            },
            "has_probability": gallery.has_probability,
            "calibrated_on": None if calibration is None else str(calibration.source),
            "has_map": state.layout is not None,
            "has_scores": state.scores is not None,
            "compare": None if service.second is None else service.second.name,
            "limits": {
                "k": MAX_RESULTS,
                "page": PAGE,
                "body_bytes": service.uploads.body_limit,
                "pixels": PIXEL_LIMIT,
                "depth": DEPTH,
                "thumbnail_sizes": list(THUMBNAIL_SIZES),
            },
        }

    return _json(await service.searching(work))


@api.get("/labels", response_model=schemas.Labels, summary="The labels by name.")
async def labels(service: Served, which: Which = "main") -> Response:
    def work() -> dict[str, Any]:
        gallery = service.gallery(which)
        counts = Counter(gallery.codes.tolist())
        named = enumerate(gallery.label_names)
        return {"labels": [{"label": label, "count": counts[code]} for code, label in named]}

    return _json(await service.searching(work))


@api.get("/images", response_model=schemas.ImageList, summary="A page of the list of images.")
async def images(
    service: Served,
    offset: Offset = 0,
    limit: Limit = 100,
    label: Label = None,
    text: Text = "",
    which: Which = "main",
) -> Response:
    def work() -> dict[str, Any]:
        gallery = service.gallery(which)
        indices = gallery.matching(label=label, text=text)
        listed = [gallery.images[index] for index in _page(indices, offset, limit)]
        entries = [{"id": one.id, "name": one.name, "label": one.label} for one in listed]
        return {"total": len(indices), "offset": offset, "images": entries}

    return _json(await service.searching(work))


@api.get("/images/{id}", response_model=schemas.ImageDetail, summary="What is known of an image.")
async def image(service: Served, image_id: ImageId, which: Which = "main") -> Response:
    def work() -> dict[str, Any]:
        gallery, index = _find(service, which, image_id)
        found = gallery.images[index]
        same = [other.id for other in gallery.images if other.sha256 == found.sha256]
        return {
            **dataclasses.asdict(gallery.query_info(index)),
            "width": found.width,
            "height": found.height,
            "bytes": found.bytes,
            "sha256": found.sha256,
            "same_content": [other for other in same if other != found.id],
            "command": f"cbml search {shlex.quote(str(gallery.folder))} --id {found.id} --k 10",
        }

    return _json(await service.searching(work))


@api.get("/images/{id}/thumbnail", responses=_JPEG, summary="An image made small.")
async def thumbnail(
    request: Request, service: Served, image_id: ImageId, size: Size = 192, which: Which = "main"
) -> Response:
    return await _jpeg(request, service, which, image_id, size)


@api.get("/images/{id}/image", responses=_JPEG, summary="An image to look at.")
async def full_size(
    request: Request, service: Served, image_id: ImageId, which: Which = "main"
) -> Response:
    return await _jpeg(request, service, which, image_id, IMAGE_SIDE)


@api.get(
    "/images/{id}/search",
    response_model=schemas.TimedSearchResponse,
    summary="Search with an image of the gallery.",
)
async def search_with_image(
    service: Served, image_id: ImageId, options: Options, which: Which = "main"
) -> Response:
    start = time.perf_counter()

    def work() -> dict[str, Any]:
        gallery, _ = _find(service, which, image_id)
        return _search(gallery, gallery.image_query(image_id), options, start)

    return _json(await service.searching(work))


@api.post(
    "/search",
    response_model=schemas.TimedSearchResponse,
    openapi_extra=_IMAGE_BODY,
    summary="Search with the image in the body.",
)
async def search_with_upload(
    request: Request, service: Served, options: Options, which: Which = "main"
) -> Response:
    gallery = await service.searching(lambda: service.gallery(which))
    start = time.perf_counter()
    (query,) = await service.decoded(request, [gallery])
    return _json(await service.run("search", lambda: _search(gallery, query, options, start)))


@api.get("/scores", response_model=schemas.Scores, summary="Scores of all labeled images.")
async def scores(service: Served, which: Which = "main") -> Response:
    def work() -> dict[str, Any]:
        found = service.gallery(which).state.scores
        if found is None:
            raise Refusal(404, "this gallery has no scores: no two images share a label")
        totals: dict[str, Any] = found.totals
        return totals

    return _json(await service.searching(work))


@api.get("/worst", response_model=schemas.WorstQueries, summary="The worst queries, worst first.")
async def worst(
    service: Served,
    offset: Offset = 0,
    limit: Limit = 100,
    label: Label = None,
    which: Which = "main",
) -> Response:
    def work() -> dict[str, Any]:
        gallery = service.gallery(which)
        indices = gallery.worst
        if label is not None:
            indices = indices[np.isin(indices, gallery.matching(label=label))]
        page = _page(indices, offset, limit)
        listed = [dataclasses.asdict(gallery.query_info(index)) for index in page]
        return {"total": len(indices), "offset": offset, "images": listed}

    return _json(await service.searching(work))


@api.get(
    "/confusions",
    response_model=schemas.Confusions,
    summary="Which labels are taken for which, most frequent first.",
)
async def confusions(
    service: Served,
    offset: Offset = 0,
    limit: Limit = 50,
    label: Label = None,
    which: Which = "main",
) -> Response:
    def work() -> dict[str, Any]:
        gallery = service.gallery(which)
        pairs = gallery.confusions()
        if label is not None:
            wanted = label.casefold()
            pairs = [pair for pair in pairs if wanted in (pair[0].casefold(), pair[1].casefold())]
        listed = [
            {
                "label": own,
                "taken_for": other,
                "count": len(queries),
                "queries": [int(gallery.ids[index]) for index in queries[:EXAMPLES]],
            }
            for own, other, queries in pairs[offset : offset + limit]
        ]
        errors = sum(len(queries) for _, _, queries in pairs)
        return {"total": len(pairs), "offset": offset, "errors": errors, "confusions": listed}

    return _json(await service.searching(work))


@api.get("/map", response_model=schemas.Map, summary="Every image's position on the map.")
async def map_positions(service: Served, which: Which = "main") -> Response:
    def work() -> dict[str, Any]:
        gallery = service.gallery(which)
        positions = gallery.state.layout
        if positions is None:
            raise Refusal(404, "this gallery has no map; run cbml index again")
        return {
            "ids": gallery.ids.tolist(),
            "x": positions[:, 0].tolist(),
            "y": positions[:, 1].tolist(),
            "labels": gallery.codes.tolist(),
            "label_names": list(gallery.label_names),
        }

    return _json(await service.searching(work))


@api.get(
    "/differences",
    response_model=schemas.Differences,
    summary="The queries on which the two galleries differ most.",
)
async def differences(
    service: Served, offset: Offset = 0, limit: Limit = 50, label: Label = None
) -> Response:
    def work() -> dict[str, Any]:
        (main, second), (moves, _) = _both(service)
        indices = largest_differences(main, second, moves)
        if label is not None:
            indices = indices[np.isin(indices, main.matching(label=label))]
        listed = []
        for index in _page(indices, offset, limit):
            found = main.images[index]
            listed.append(
                {
                    "id": found.id,
                    "name": found.name,
                    "label": found.label,
                    "average_precision": main.query_info(index).average_precision,
                    "other_average_precision": second.query_info(
                        int(moves[index])
                    ).average_precision,
                }
            )
        return {"total": len(indices), "offset": offset, "images": listed}

    return _json(await service.searching(work))


@api.get(
    "/compare/{id}",
    response_model=schemas.Comparison,
    summary="Search both galleries with an image of the main one.",
)
async def compare_image(service: Served, image_id: ImageId, k: Results = 50) -> Response:
    start = time.perf_counter()

    def work() -> dict[str, Any]:
        galleries, moves = _both(service)
        _, index = _find(service, "main", image_id)
        other = int(moves[0][index])
        if other < 0:
            raise Refusal(404, f"image {image_id}: not in the second gallery")
        second = galleries[1]
        queries = galleries[0].image_query(image_id), second.image_query(int(second.ids[other]))
        return _compare(galleries, queries, moves, k, start)

    return _json(await service.searching(work))


@api.post(
    "/compare",
    response_model=schemas.Comparison,
    openapi_extra=_IMAGE_BODY,
    summary="Search both galleries with the image in the body.",
)
async def compare_upload(request: Request, service: Served, k: Results = 50) -> Response:
    start = time.perf_counter()
    galleries, moves = await service.searching(lambda: _both(service))
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


def _both(service: "Service") -> tuple[tuple[Gallery, Gallery], Any]:
    if service.second is None:
        raise Refusal(404, "one gallery is served; start with --compare for a second one")
    return (service.main, service.second), service.moves


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
    request: Request,
    service: "Service",
    which: Which,
    image_id: int,
    side: int,
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
            raise Refusal(404, f"image {found.id}: {reason}; run cbml index again") from None

    return Response(await service.run("images", work), media_type="image/jpeg", headers=headers)


def _json(value: Any) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), media_type="application/json")
