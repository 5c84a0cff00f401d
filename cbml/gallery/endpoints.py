"""What each address answers: plain functions from a call to values or bytes."""

import dataclasses
import hashlib
import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml import __version__
from cbml.data.decode import PIXEL_LIMIT
from cbml.errors import BadData
from cbml.gallery.answers import MOST, Query, Wish
from cbml.gallery.compare import compared, counterparts
from cbml.gallery.gallery import Gallery
from cbml.gallery.parameters import Refusal, read_number
from cbml.gallery.search import DEPTH
from cbml.gallery.thumbnails import IMAGE_SIDE, THUMBNAIL_SIZES, ByteCache, file_jpeg

__all__ = ["PAGE", "Call", "Endpoints", "Jpeg"]

PAGE = 500  # entries of a list in one answer
CACHE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Call:
    """A request after its parameters have been read.

    Args:
        number: the id in the address, where there is one.
        values: of the query parameters.
        body: the bytes that came with it.
    """

    number: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Jpeg:
    """A picture to send.

    Args:
        tag: changes when the picture changes.
        content: a function that gives its bytes, called only if the client has not got them.
    """

    tag: str
    content: Any


class Endpoints:
    """The answers of one gallery, or of two.

    Args:
        main: the gallery.
        compare: a second one of the same pictures, by another model.
        body_limit: bytes of an upload, for `info`.
    """

    def __init__(self, main: Gallery, compare: Gallery | None, *, body_limit: int) -> None:
        self.main, self.compare_with = main, compare
        self.body_limit = body_limit
        self.cache = ByteCache(CACHE_BYTES)
        self.moves: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        if compare is not None:
            self.moves = counterparts(main, compare), counterparts(compare, main)

    def info(self, call: Call) -> dict[str, Any]:
        """What is served.

        Args:
            call: the request.
        """
        gallery, model = self._gallery(call), self._gallery(call).state.model
        return {
            "name": gallery.name,
            "folder": str(gallery.folder),
            "version": __version__,
            "pictures": len(gallery),
            "labelled": int((gallery.codes >= 0).sum()),
            "labels": len(gallery.label_names),
            "bad": len(gallery.state.bad),
            "dim": gallery.dim,
            "model": {
                **{name: model[name] for name in ("backbone", "pooling", "provenance")},
                "crop": model["preprocessing"]["crop"],
            },
            "has_probability": gallery.has_probability,
            "has_map": gallery.state.layout is not None,
            "has_scores": gallery.state.scores is not None,
            "compare": None if self.compare_with is None else self.compare_with.name,
            "limits": {
                "k": MOST,
                "page": PAGE,
                "body_bytes": self.body_limit,
                "pixels": PIXEL_LIMIT,
                "depth": DEPTH,
                "thumbnail_sizes": list(THUMBNAIL_SIZES),
            },
        }

    def labels(self, call: Call) -> dict[str, Any]:
        """The labels by name.

        Args:
            call: the request.
        """
        gallery = self._gallery(call)
        counts = Counter(gallery.codes.tolist())
        return {
            "labels": [
                {"label": label, "count": counts[code]}
                for code, label in enumerate(gallery.label_names)
            ]
        }

    def pictures(self, call: Call) -> dict[str, Any]:
        """A page of the list of pictures.

        Args:
            call: the request.
        """
        gallery = self._gallery(call)
        places = gallery.places(label=call.values["label"], text=call.values["text"])
        listed = [gallery.pictures[place] for place in self._page(call, places)]
        return {
            "total": len(places),
            "offset": call.values["offset"],
            "pictures": [
                {"id": picture.id, "name": picture.name, "label": picture.label}
                for picture in listed
            ],
        }

    def picture(self, call: Call) -> dict[str, Any]:
        """All that is known of a picture.

        Args:
            call: the request.
        """
        gallery, place = self._placed(call)
        picture = gallery.pictures[place]
        same = [
            other.id
            for other in gallery.pictures
            if other.sha256 == picture.sha256 and other.id != picture.id
        ]
        command = f"cbml search {shlex.quote(str(gallery.folder))} --id {picture.id} --k 10"
        return {
            **dataclasses.asdict(gallery.asked(place)),
            "width": picture.width,
            "height": picture.height,
            "bytes": picture.bytes,
            "sha256": picture.sha256,
            "same_content": same,
            "command": command,
        }

    def thumbnail(self, call: Call) -> Jpeg:
        """A picture made small.

        Args:
            call: the request.
        """
        return self._jpeg(call, call.values["size"])

    def image(self, call: Call) -> Jpeg:
        """A picture to look at.

        Args:
            call: the request.
        """
        return self._jpeg(call, IMAGE_SIDE)

    def search_with(self, call: Call) -> dict[str, Any]:
        """Search with a picture of the gallery.

        Args:
            call: the request.
        """
        gallery, place = self._placed(call)
        start = time.perf_counter()
        return self._search(gallery, gallery.picture_query(int(gallery.ids[place])), call, start)

    def search(self, call: Call) -> dict[str, Any]:
        """Search with the picture in the body.

        Args:
            call: the request.
        """
        gallery, start = self._gallery(call), time.perf_counter()
        return self._search(gallery, _query(gallery, call.body), call, start)

    def scores(self, call: Call) -> dict[str, Any]:
        """The scores of all labelled pictures as queries.

        Args:
            call: the request.
        """
        scores = self._gallery(call).state.scores
        if scores is None:
            raise Refusal(404, "this gallery has no scores: no two pictures share a label")
        return scores.totals

    def worst(self, call: Call) -> dict[str, Any]:
        """A page of the pictures with the worst scores.

        Args:
            call: the request.
        """
        gallery, label = self._gallery(call), call.values["label"]
        places = gallery.worst
        if label is not None:
            places = places[np.isin(places, gallery.places(label=label))]
        listed = [dataclasses.asdict(gallery.asked(place)) for place in self._page(call, places)]
        return {"total": len(places), "offset": call.values["offset"], "pictures": listed}

    def map(self, call: Call) -> dict[str, Any]:
        """The map, in columns.

        Args:
            call: the request.
        """
        gallery = self._gallery(call)
        places = gallery.state.layout
        if places is None:
            raise Refusal(404, "this gallery has no map; run cbml index again")
        return {
            "ids": gallery.ids.tolist(),
            "x": places[:, 0].tolist(),
            "y": places[:, 1].tolist(),
            "labels": gallery.codes.tolist(),
            "label_names": list(gallery.label_names),
        }

    def compare(self, call: Call) -> dict[str, Any]:
        """Search both galleries, with a picture of the main one or with that in the body.

        Args:
            call: the request.
        """
        start = time.perf_counter()
        if self.compare_with is None or self.moves is None:
            raise Refusal(404, "one gallery is served; start with --compare for a second one")
        galleries = (self.main, self.compare_with)
        if call.number:
            _, place = self._placed(call)
            other = int(self.moves[0][place])
            if other < 0:
                raise Refusal(404, f"picture {call.number}: not in the second gallery")
            queries = (
                self.main.picture_query(int(self.main.ids[place])),
                self.compare_with.picture_query(int(self.compare_with.ids[other])),
            )
        else:
            queries = (_query(self.main, call.body), _query(self.compare_with, call.body))
        main, second = compared(galleries, queries, self.moves, call.values["k"])
        took = round(1000 * (time.perf_counter() - start), 1)
        return {"query": main["query"], "main": main, "compare": second, "took_ms": took}

    def _gallery(self, call: Call) -> Gallery:
        if call.values.get("which", "main") == "main":
            return self.main
        if self.compare_with is None:
            raise Refusal(400, "which: one gallery is served; start with --compare for a second")
        return self.compare_with

    def _placed(self, call: Call) -> tuple[Gallery, int]:
        gallery, number = self._gallery(call), read_number(call.number)
        try:
            return gallery, gallery.place(number)
        except BadData as error:
            raise Refusal(404, str(error)) from None

    def _page(self, call: Call, places: NDArray[np.int64]) -> list[int]:
        first: int = call.values["offset"]
        page: list[int] = places[first : first + call.values["limit"]].tolist()
        return page

    def _search(self, gallery: Gallery, query: Query, call: Call, start: float) -> dict[str, Any]:
        names = ("k", "min_probability", "label", "text", "hide_duplicates")
        try:
            answer = gallery.search(query, Wish(**{name: call.values[name] for name in names}))
        except BadData as error:
            raise Refusal(400, str(error)) from None
        return {**answer.as_dict(), "took_ms": round(1000 * (time.perf_counter() - start), 1)}

    def _jpeg(self, call: Call, side: int) -> Jpeg:
        gallery, place = self._placed(call)
        picture = gallery.pictures[place]
        # By the content, not by the id: two galleries share what they have in common.
        key = (picture.path, picture.sha256, side)
        tag = hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()[:24]

        def content() -> bytes:
            try:
                return self.cache.get(key, lambda: file_jpeg(picture, side))
            except BadData as error:
                reason = getattr(error, "reason", "cannot be read")
                raise Refusal(
                    404, f"picture {picture.id}: {reason}; run cbml index again"
                ) from None

        return Jpeg(tag, content)


def _query(gallery: Gallery, body: bytes) -> Query:
    try:
        return gallery.query(body)
    except BadData as error:
        raise Refusal(422, str(error)) from None
