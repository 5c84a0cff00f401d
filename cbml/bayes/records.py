"""Plain records that carry their own checksum, so that an altered number is noticed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cbml.errors import DamagedFile

__all__ = ["read_sealed", "sealed"]


def sealed(kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with their kind and checksum, ready for JSON.

    Args:
        kind: what it is, such as "cbml match probability 1".
        facts: plain values.
    """
    record = {"kind": kind, **facts}
    return {**record, "sha256": _digest(record)}


def read_sealed(path: Path, kind: str) -> dict[str, Any]:
    """The facts of a sealed record; anything else is refused.

    Args:
        path: of the file.
        kind: what it must be.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: not readable as JSON ({error}); restore a copy") from None
    if not isinstance(record, dict) or record.get("kind") != kind:
        raise DamagedFile(f"{path}: not a file of kind {kind!r}")
    if record.pop("sha256", None) != _digest(record):
        raise DamagedFile(f"{path}: altered since it was written; restore a copy or write it again")
    del record["kind"]
    return record


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
