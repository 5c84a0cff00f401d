"""Saved files that are old or new, never between, and whose damage is found before use.

A saved folder (a model, an index, a packed cache) has one commit point: `manifest.json`. Its parts
carry a piece of their SHA-256 in their names, so that a new save never touches a part the old
manifest still names; the manifest is replaced by one atomic rename, and only then are the parts
that nobody names any more deleted. A kill at any moment leaves the old folder or the new one.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cbml.errors import DamagedFile

__all__ = ["load_folder", "replaced_file", "save_folder", "sha256", "write_json"]

MANIFEST = "manifest.json"
SCRATCH = ".part-"
# No save takes a day: what is older belongs to one that was killed.
ABANDONED_AFTER = 24 * 3600.0

Writer = Callable[[Path], object]


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well, it takes the place of `path`.

    The new file has the permissions of an ordinary new file (umask), a symbolic link keeps pointing
    at its target, whose content is replaced, and data and folder entry are flushed to the disk.

    Args:
        path: the file to create or replace.
    """
    target = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        _flush(temporary)
        os.replace(temporary, target)
        _flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value` as JSON with sorted keys; NaN and infinity are refused.

    Args:
        path: the file to create or replace.
        value: anything that JSON can hold.
    """
    text = _json_text(value)
    with replaced_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes in hexadecimal.

    Args:
        path: the file to read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_folder(
    folder: Path,
    kind: str,
    parts: Mapping[str, Writer],
    about: Mapping[str, object],
    *,
    alone: bool = False,
) -> None:
    """Save a folder of parts under one manifest, in one step as seen by any reader.

    Args:
        folder: where to save; made if missing; parts of an earlier save are replaced.
        kind: what the folder holds, such as "cbml model 1"; `load_folder` asks for the same.
        parts: name -> function that writes that part to the path it is given.
        about: plain facts to keep in the manifest.
        alone: the caller holds a lock that every save into this folder takes; what a killed save
            left behind is then known to be nobody's and deleted at once, not after a day.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(folder, math.inf if alone else time.time() - ABANDONED_AFTER)
    entries: dict[str, dict[str, object]] = {}
    for name, write in parts.items():
        with contextlib.ExitStack() as stack:
            scratch = Path(
                stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH))
            )
            write(scratch / name)
            digest = sha256(scratch / name)
            stored = f"{Path(name).stem}-{digest[:16]}{Path(name).suffix}"
            with replaced_file(folder / stored) as temporary:
                os.replace(scratch / name, temporary)
        size = (folder / stored).stat().st_size
        entries[name] = {"file": stored, "bytes": size, "sha256": digest}
    manifest = {"kind": kind, "parts": entries, "about": dict(about)}
    write_json(folder / MANIFEST, {**manifest, "sha256": _digest(manifest)})
    _delete_unnamed(folder, {str(entry["file"]) for entry in entries.values()})


def load_folder(folder: Path, kind: str) -> tuple[dict[str, Path], dict[str, Any]]:
    """The checked parts of a saved folder, name -> path, and the facts saved with them.

    Every byte is compared with the manifest before any part is handed out.

    Args:
        folder: a folder written by `save_folder`.
        kind: what it must hold.
    """
    manifest = _read_manifest(folder, kind)
    parts: dict[str, Path] = {}
    for name, entry in manifest["parts"].items():
        path = folder / entry["file"]
        if not path.is_file():
            raise DamagedFile(f"{path}: missing; save the folder again or restore it from a copy")
        if path.stat().st_size != entry["bytes"] or sha256(path) != entry["sha256"]:
            raise DamagedFile(
                f"{path}: its content is not what {MANIFEST} says; restore it from a copy"
            )
        parts[name] = path
    return parts, manifest["about"]


def _read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
        manifest = json.loads(text)
    except FileNotFoundError:
        raise DamagedFile(f"{folder}: no {MANIFEST}; not a saved {kind!r} folder") from None
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: not readable as JSON ({error})") from None
    as_written = isinstance(manifest, dict) and text == _json_text(manifest)
    if not (as_written and manifest.pop("sha256", None) == _digest(manifest)):
        raise DamagedFile(f"{path}: altered, or not a manifest of this program; restore a copy")
    if not _well_formed(manifest):
        raise DamagedFile(f"{path}: not a manifest of this program")
    if manifest["kind"] != kind:
        raise DamagedFile(f"{path}: holds {manifest['kind']!r}, expected {kind!r}")
    return dict(manifest)


def _json_text(value: object) -> str:
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return text + "\n"


def _digest(manifest: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _well_formed(manifest: Mapping[str, Any]) -> bool:
    if set(manifest) != {"kind", "parts", "about"}:
        return False
    if not (isinstance(manifest["parts"], dict) and isinstance(manifest["about"], dict)):
        return False
    # A part is a plain file name: a manifest must never lead out of its folder.
    return all(
        isinstance(entry, dict)
        and set(entry) == {"file", "bytes", "sha256"}
        and isinstance(entry["file"], str)
        and entry["file"] == Path(entry["file"]).name != ".."
        and isinstance(entry["bytes"], int)
        and isinstance(entry["sha256"], str)
        for entry in manifest["parts"].values()
    )


def _delete_unnamed(folder: Path, named: set[str]) -> None:
    """Delete parts of earlier saves: names that end in a hash of ours and that nobody names."""
    for path in folder.iterdir():
        tail = path.stem.rpartition("-")[2]
        ours = len(tail) == 16 and set(tail) <= set("0123456789abcdef")
        if path.is_file() and ours and path.name not in named:
            path.unlink(missing_ok=True)


def _delete_abandoned(folder: Path, before: float) -> None:
    """Delete what a killed save left behind; it may be as large as all that was saved."""
    for path in folder.glob(f"{SCRATCH}*"):
        with contextlib.suppress(FileNotFoundError):  # another save was faster
            if path.stat().st_mtime < before:
                shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                path.unlink()


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
