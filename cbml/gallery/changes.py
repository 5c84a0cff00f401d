"""What has happened to the files since a gallery was last built."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbml.files import sha256
from cbml.gallery.pictures import Listed, Picture

__all__ = ["Changes", "changes_since"]


@dataclass(frozen=True)
class Changes:
    """The pictures to keep, to embed and to drop.

    Args:
        kept: known pictures, brought up to date where a file was touched, renamed or relabelled.
        new: files to embed: new ones, and those with other content than before.
        gone: known pictures whose content is nowhere among the files any more.
        renamed: how many of the kept have another path than before.
        updated: how many of the kept differ in anything from what was known.
    """

    kept: list[Picture]
    new: list[Listed]
    gone: list[Picture]
    renamed: int
    updated: int


def changes_since(known: Sequence[Picture], listed: Sequence[Listed]) -> Changes:
    """Compare what a gallery knows with the files as they are.

    A file whose length and time are those of before counts as unchanged; of every other one the
    content decides. A content that moved to another path keeps its picture and its id.

    Args:
        known: the pictures of the gallery.
        listed: the files that should be in it.
    """
    by_path = {picture.path: picture for picture in known}
    kept: dict[int, Picture] = {}
    others: list[tuple[Listed, os.stat_result | None]] = []
    for one in listed:
        before, now = by_path.get(one.path), _stat(one.path)
        if before is not None and now is not None and _untouched(before, now):
            kept[before.id] = _brought_up(before, one, now)
        else:
            others.append((one, now))
    new = _settled(others, [picture for picture in known if picture.id not in kept], kept)
    pictures = sorted(kept.values(), key=lambda picture: picture.id)
    earlier = {picture.id: picture for picture in known}
    return Changes(
        kept=pictures,
        new=new,
        gone=[picture for picture in known if picture.id not in kept],
        renamed=sum(earlier[picture.id].path != picture.path for picture in pictures),
        updated=sum(earlier[picture.id] != picture for picture in pictures),
    )


def _settled(
    others: list[tuple[Listed, os.stat_result | None]],
    unclaimed: list[Picture],
    kept: dict[int, Picture],
) -> list[Listed]:
    """Give touched and moved files their pictures back, into `kept`; the rest is new."""
    by_content: dict[str, list[Picture]] = {}
    for picture in reversed(unclaimed):
        by_content.setdefault(picture.sha256, []).append(picture)
    sizes = {picture.bytes for picture in unclaimed}
    contents = {
        one.path: _content(one.path) if now is not None and now.st_size in sizes else None
        for one, now in others
    }
    new: list[Listed] = []
    # Those that stayed at their path choose first, so that a copy cannot take their place.
    paths = {picture.path: picture.sha256 for picture in unclaimed}
    stayed = [pair for pair in others if contents[pair[0].path] == paths.get(pair[0].path, "")]
    moved = [pair for pair in others if contents[pair[0].path] != paths.get(pair[0].path, "")]
    for one, now in stayed + moved:
        candidates = by_content.get(contents[one.path] or "", [])
        if now is None or not candidates:
            new.append(one)
            continue
        same_path = [picture for picture in candidates if picture.path == one.path]
        picture = same_path[0] if same_path else candidates[-1]
        candidates.remove(picture)
        kept[picture.id] = _brought_up(picture, one, now)
    order = {one.path: place for place, (one, _) in enumerate(others)}
    return sorted(new, key=lambda one: order[one.path])


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _untouched(picture: Picture, now: os.stat_result) -> bool:
    return (picture.bytes, picture.modified) == (now.st_size, now.st_mtime_ns)


def _brought_up(picture: Picture, one: Listed, now: os.stat_result) -> Picture:
    return dataclasses.replace(
        picture, path=one.path, name=one.name, label=one.label, modified=now.st_mtime_ns
    )


def _content(path: str) -> str | None:
    try:
        return sha256(Path(path))
    except OSError:
        return None
