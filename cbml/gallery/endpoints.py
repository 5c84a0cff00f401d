"""What each address answers: plain functions from a call to values or bytes."""

import dataclasses
import hashlib
import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml import __version__
from cbml.data.decode import PIXEL_LIMIT
from cbml.errors import BadData
from cbml.gallery.answers import MOST
from cbml.gallery.compare import counterparts
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
        self.main, self.second = main, compare
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
        gallery, model = self.gallery(call), self.gallery(call).state.model
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
            "compare": None if self.second is None else self.second.name,
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
        gallery = self.gallery(call)
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
        gallery = self.gallery(call)
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
        gallery, place = self.placed(call)
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

    def scores(self, call: Call) -> dict[str, Any]:
        """The scores of all labelled pictures as queries.

        Args:
            call: the request.
        """
        scores = self.gallery(call).state.scores
        if scores is None:
            raise Refusal(404, "this gallery has no scores: no two pictures share a label")
        return scores.totals

    def worst(self, call: Call) -> dict[str, Any]:
        """A page of the pictures with the worst scores.

        Args:
            call: the request.
        """
        gallery, label = self.gallery(call), call.values["label"]
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
        gallery = self.gallery(call)
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

    def gallery(self, call: Call) -> Gallery:
        """The gallery that is meant.

        Args:
            call: the request.
        """
        if call.values.get("which", "main") == "main":
            return self.main
        if self.second is None:
            raise Refusal(400, "which: one gallery is served; start with --compare for a second")
        return self.second

    def placed(self, call: Call) -> tuple[Gallery, int]:
        """The gallery that is meant, and where the picture stands in it.

        Args:
            call: the request.
        """
        gallery, number = self.gallery(call), read_number(call.number)
        try:
            return gallery, gallery.place(number)
        except BadData as error:
            raise Refusal(404, str(error)) from None

    def _page(self, call: Call, places: NDArray[np.int64]) -> list[int]:
        first: int = call.values["offset"]
        page: list[int] = places[first : first + call.values["limit"]].tolist()
        return page

    def _jpeg(self, call: Call, side: int) -> Jpeg:
        gallery, place = self.placed(call)
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
