"""What has happened to the files since a gallery was last built."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbml.files import sha256
from cbml.gallery.images import GalleryImage, ImageRef

__all__ = ["Changes", "changes_since"]


@dataclass(frozen=True)
class Changes:
    """The images to keep, to embed and to drop.

    `kept` are brought up to date where a file was touched, renamed or relabeled; `new` are new
    files and those with other content than before; `gone` are images whose content is nowhere
    among the files any more. Of the kept, `renamed` have another path and `updated` differ in
    anything from what was known.
    """

    kept: list[GalleryImage]
    new: list[ImageRef]
    gone: list[GalleryImage]
    renamed: int
    updated: int


def changes_since(known: Sequence[GalleryImage], refs: Sequence[ImageRef]) -> Changes:
    """Compare what a gallery knows with the files as they are.

    A file whose length and time are those of before counts as unchanged; of every other one the
    content decides. A content that moved to another path keeps its image and its id.
    """
    by_path = {image.path: image for image in known}
    kept: dict[int, GalleryImage] = {}
    others: list[tuple[ImageRef, os.stat_result | None]] = []
    for ref in refs:
        before, now = by_path.get(ref.path), _stat(ref.path)
        if before is not None and now is not None and _untouched(before, now):
            kept[before.id] = _brought_up(before, ref, now)
        else:
            others.append((ref, now))
    new = _settled(others, [image for image in known if image.id not in kept], kept)
    images = sorted(kept.values(), key=lambda image: image.id)
    earlier = {image.id: image for image in known}
    return Changes(
        kept=images,
        new=new,
        gone=[image for image in known if image.id not in kept],
        renamed=sum(earlier[image.id].path != image.path for image in images),
        updated=sum(earlier[image.id] != image for image in images),
    )


def _settled(
    others: list[tuple[ImageRef, os.stat_result | None]],
    unclaimed: list[GalleryImage],
    kept: dict[int, GalleryImage],
) -> list[ImageRef]:
    """Give touched and moved files their images back, into `kept`; the rest is new."""
    by_content: dict[str, list[GalleryImage]] = {}
    for image in reversed(unclaimed):
        by_content.setdefault(image.sha256, []).append(image)
    sizes = {image.bytes for image in unclaimed}
    contents = {
        ref.path: _content(ref.path) if now is not None and now.st_size in sizes else None
        for ref, now in others
    }
    new: list[ImageRef] = []
    # Those that stayed at their path choose first, so that a copy cannot take their place.
    paths = {image.path: image.sha256 for image in unclaimed}
    stayed = [pair for pair in others if contents[pair[0].path] == paths.get(pair[0].path, "")]
    moved = [pair for pair in others if contents[pair[0].path] != paths.get(pair[0].path, "")]
    for ref, now in stayed + moved:
        candidates = by_content.get(contents[ref.path] or "", [])
        if now is None or not candidates:
            new.append(ref)
            continue
        same_path = [image for image in candidates if image.path == ref.path]
        image = same_path[0] if same_path else candidates[-1]
        candidates.remove(image)
        kept[image.id] = _brought_up(image, ref, now)
    order = {ref.path: index for index, (ref, _) in enumerate(others)}
    return sorted(new, key=lambda ref: order[ref.path])


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _untouched(image: GalleryImage, now: os.stat_result) -> bool:
    return (image.bytes, image.modified) == (now.st_size, now.st_mtime_ns)


def _brought_up(image: GalleryImage, ref: ImageRef, now: os.stat_result) -> GalleryImage:
    return dataclasses.replace(
        image, path=ref.path, name=ref.name, label=ref.label, modified=now.st_mtime_ns
    )


def _content(path: str) -> str | None:
    try:
        return sha256(Path(path))
    except OSError:
        return None
