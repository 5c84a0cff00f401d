"""Pictures that are the same file under two names."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

__all__ = ["same_bytes"]


def same_bytes(paths: Sequence[Path]) -> list[list[int]]:
    """Groups of positions whose files have the same bytes; files that cannot be read are left out.

    Only files that share their length with another are read at all.

    Args:
        paths: the files to compare.
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for place, path in enumerate(paths):
        try:
            by_length[os.stat(path).st_size].append(place)
        except OSError:
            continue
    groups: list[list[int]] = []
    for places in by_length.values():
        if len(places) > 1:
            groups += _same_content(paths, places)
    return sorted(groups)


def _same_content(paths: Sequence[Path], places: list[int]) -> list[list[int]]:
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for place in places:
        try:
            with open(paths[place], "rb") as file:
                by_content[hashlib.file_digest(file, "sha256").digest()].append(place)
        except OSError:
            continue
    return [group for group in by_content.values() if len(group) > 1]
