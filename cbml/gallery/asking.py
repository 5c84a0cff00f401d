"""Searches over HTTP: with a picture of the gallery, with one in the body, in two galleries."""

import time
from typing import Any

from cbml.errors import BadData
from cbml.gallery.answers import Query, Wish
from cbml.gallery.compare import compared
from cbml.gallery.endpoints import Call, Endpoints
from cbml.gallery.gallery import Gallery
from cbml.gallery.parameters import Refusal

__all__ = ["compare", "search", "search_with"]


def search_with(served: Endpoints, call: Call) -> dict[str, Any]:
    """Search with a picture of the gallery.

    Args:
        served: the galleries.
        call: the request.
    """
    gallery, place = served.placed(call)
    start = time.perf_counter()
    return _searched(gallery, gallery.picture_query(int(gallery.ids[place])), call, start)


def search(served: Endpoints, call: Call) -> dict[str, Any]:
    """Search with the picture in the body.

    Args:
        served: the galleries.
        call: the request.
    """
    gallery, start = served.gallery(call), time.perf_counter()
    return _searched(gallery, _query(gallery, call.body), call, start)


def compare(served: Endpoints, call: Call) -> dict[str, Any]:
    """Search both galleries, with a picture of the main one or with that in the body.

    Args:
        served: the galleries.
        call: the request.
    """
    start = time.perf_counter()
    if served.second is None or served.moves is None:
        raise Refusal(404, "one gallery is served; start with --compare for a second one")
    galleries = (served.main, served.second)
    if call.number:
        _, place = served.placed(call)
        other = int(served.moves[0][place])
        if other < 0:
            raise Refusal(404, f"picture {call.number}: not in the second gallery")
        queries = (
            served.main.picture_query(int(served.main.ids[place])),
            served.second.picture_query(int(served.second.ids[other])),
        )
    else:
        queries = (_query(served.main, call.body), _query(served.second, call.body))
    main, second = compared(galleries, queries, served.moves, call.values["k"])
    took = round(1000 * (time.perf_counter() - start), 1)
    return {"query": main["query"], "main": main, "compare": second, "took_ms": took}


def _searched(gallery: Gallery, query: Query, call: Call, start: float) -> dict[str, Any]:
    names = ("k", "min_probability", "label", "text", "hide_duplicates")
    try:
        answer = gallery.search(query, Wish(**{name: call.values[name] for name in names}))
    except BadData as error:
        raise Refusal(400, str(error)) from None
    return {**answer.as_dict(), "took_ms": round(1000 * (time.perf_counter() - start), 1)}


def _query(gallery: Gallery, body: bytes) -> Query:
    try:
        return gallery.query(body)
    except BadData as error:
        raise Refusal(422, str(error)) from None
