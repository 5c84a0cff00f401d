"""Saved files that are old or new, never between, and whose damage is found before use.

A saved folder (a model, an index, a packed cache) has one commit point: `manifest.json`. Its parts
carry a piece of their SHA-256 in their names, so that a new save never touches a part an earlier
manifest names, and the manifest is replaced by one atomic rename. A kill at any moment leaves the
old folder or the new one.

Writers take turns by `locked`. Readers take no lock, so a read-only copy can be read and nobody
waits for a reader: the parts of the last manifest stay until the save after the next, and whoever
was slower than that reads again (`consistent`).
"""

import contextlib
import csv
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cbml.errors import BadData, DamagedFile, FolderInUse
from cbml.regular import check_regular, open_regular, read_file, read_text

__all__ = [
    "check_name",
    "consistent",
    "load_folder",
    "locked",
    "replaced_file",
    "save_folder",
    "sha256",
    "write_csv",
    "write_json",
]

MANIFEST = "manifest.json"
LOCK = ".lock"
SCRATCH = ".part-"
# Seconds after which the process that holds a lock is taken for stuck.
PATIENCE = 600.0

T = TypeVar("T")
Writer = Callable[[Path], object]


@contextlib.contextmanager
def locked(folder: Path, *, wait: float = PATIENCE, name: str = LOCK) -> Iterator[None]:
    """Hold the write lock of a folder inside the block; raises FolderInUse when it stays taken.

    The lock is one of the operating system, so it ends with its process, however that ends. A
    thread that holds it may take it again. On NFS it holds between machines if the server grants
    locks, and a machine that died loses it when its lease runs out (about 90 s on NFSv4). Where the
    file system knows no locks at all, the lock file itself is the lock: a dead process of the same
    machine is noticed, one of another machine is not, and its lock file has to be deleted by hand.

    Args:
        folder: Made if missing.
        wait: Seconds to wait for another process; 0 does not wait, infinity waits for ever.
        name: Name of the lock file, for folders in which single files are locked.
    """
    from filelock import FileLock, Timeout  # here: `cbml --help` needs no lock

    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flock not supported")  # said above, once
        # One object for each path: a thread that holds the lock does not wait for itself.
        lock = FileLock(folder.resolve() / name, is_singleton=True)
        try:
            lock.acquire(timeout=-1 if wait == math.inf else wait)
        except Timeout:
            raise FolderInUse(
                f"{folder}: another process is writing here; try again when it has finished"
            ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well, it takes the place of `path`.

    The new file has the permissions of an ordinary new file (umask), a symbolic link keeps pointing
    at its target, whose content is replaced, and data and folder entry are flushed to the disk.

    Args:
        path: The file to create or replace.
    """
    target = Path(os.path.realpath(path))
    check_regular(target)  # else a link to a device would have the device itself replaced
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
        path: The file to create or replace.
        value: Anything that JSON can hold.
    """
    text = _json_text(value)
    with replaced_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Replace `path` by a table; names of files keep bytes that are not text.

    Args:
        path: The file to create or replace.
        columns: Names of the columns.
        rows: Values in the order of the columns.
    """
    with (
        replaced_file(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(rows)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes in hexadecimal.

    Args:
        path: The file to read.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_name(folder: Path) -> None:
    """Refuse a folder whose name is no text: safetensors reads nothing there that it has written.

    Args:
        folder: Where something is to be saved.
    """
    try:
        os.fspath(folder.absolute()).encode("utf-8")
    except UnicodeEncodeError:
        raise BadData(f"{folder}: its name is not UTF-8; choose another folder") from None


def save_folder(
    folder: Path, kind: str, parts: Mapping[str, Writer], metadata: Mapping[str, object]
) -> None:
    """Save a folder of parts under one manifest, in one step as seen by any reader.

    Args:
        folder: Where to save; made if missing; parts of an earlier save are replaced.
        kind: What the folder holds, such as "cbml model 1"; `load_folder` asks for the same.
        parts: Name -> function that writes that part to the path it is given.
        metadata: Plain values to keep in the manifest.
    """
    if any(name.endswith(".safetensors") for name in parts):
        check_name(folder)
    with locked(folder):
        _delete_abandoned(folder)
        replaced = _named_files(folder)
        entries = {name: _write_part(folder, name, write) for name, write in parts.items()}
        manifest = {"kind": kind, "parts": entries, "metadata": dict(metadata)}
        write_json(folder / MANIFEST, {**manifest, "sha256": _digest(manifest)})
        if not replaced:
            # A new folder: without its own entry on the disk, a power cut would take all of it.
            _flush(folder.resolve().parent)
        # What was replaced just now may still be read; what the save before replaced is not.
        _delete_unnamed(folder, replaced | {str(entry["file"]) for entry in entries.values()})


def load_folder(folder: Path, kind: str) -> tuple[dict[str, Path], dict[str, Any]]:
    """The checked parts of a saved folder, name -> path, and the metadata saved with them.

    Every byte is compared with the manifest before any part is handed out.

    Args:
        folder: A folder written by `save_folder`.
        kind: What it must hold.
    """
    return consistent(folder, lambda: _checked_parts(folder, kind))


def consistent(folder: Path, read: Callable[[], T]) -> T:
    """What `read` gives; it reads again if it failed while a writer replaced what it was reading.

    Args:
        folder: A folder written by `save_folder`.
        read: Reads the folder, and can be called more than once.
    """
    while True:
        before = _manifest_bytes(folder)
        try:
            return read()
        except (DamagedFile, OSError):
            if _manifest_bytes(folder) == before:
                raise


def _write_part(folder: Path, name: str, write: Writer) -> dict[str, object]:
    """Write one part under a name that holds its hash; its entry in the manifest."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH) as scratch:
        written = Path(scratch) / name
        with _named_errors(folder / name):
            write(written)
        digest = sha256(written)
        stored = f"{Path(name).stem}-{digest[:16]}{Path(name).suffix}"
        with replaced_file(folder / stored) as temporary:
            os.replace(written, temporary)
    return {"file": stored, "bytes": (folder / stored).stat().st_size, "sha256": digest}


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Errors of the system name the file that was to be written, whoever wrote it."""
    try:
        yield
    except Exception as error:
        # safetensors has an error of its own for a full disk, with the number in its text.
        told = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else told and int(told[1])
        if not number:
            raise
        raise OSError(number, os.strerror(number), str(path)) from None


def _checked_parts(folder: Path, kind: str) -> tuple[dict[str, Path], dict[str, Any]]:
    manifest = _read_manifest(folder, kind)
    parts: dict[str, Path] = {}
    for name, entry in manifest["parts"].items():
        path = folder / entry["file"]
        try:
            sound = path.stat().st_size == entry["bytes"] and sha256(path) == entry["sha256"]
        except OSError as error:
            raise DamagedFile(
                f"{path}: missing or not readable ({error.strerror}); save the folder again or "
                "restore it from a copy"
            ) from None
        if not sound:
            raise DamagedFile(
                f"{path}: its content is not what {MANIFEST} says; restore it from a copy"
            )
        parts[name] = path
    return parts, manifest["metadata"]


def _read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        text = read_text(path)
        manifest = json.loads(text)
        as_written = isinstance(manifest, dict) and text == _json_text(manifest)
    except FileNotFoundError:
        raise DamagedFile(f"{folder}: no {MANIFEST}; not a saved {kind!r} folder") from None
    except OSError as error:
        raise DamagedFile(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: not readable as JSON ({error})") from None
    if not (as_written and manifest.pop("sha256", None) == _digest(manifest)):
        raise DamagedFile(f"{path}: altered, or not a manifest of this program; restore a copy")
    if set(manifest) == {"kind", "parts", "about"}:
        raise DamagedFile(f"{path}: saved by an earlier version of cbml; make it again")
    if not _well_formed(manifest):
        raise DamagedFile(f"{path}: not a manifest of this program")
    if manifest["kind"] != kind:
        raise DamagedFile(f"{path}: holds {manifest['kind']!r}, expected {kind!r}")
    return dict(manifest)


def _manifest_bytes(folder: Path) -> bytes | None:
    try:
        return read_file(folder / MANIFEST)
    except OSError:
        return None


def _named_files(folder: Path) -> set[str]:
    """The files that the present manifest names; none where there is none, or a damaged one.

    One that cannot be read just now may name files that must not be deleted: then OSError.
    """
    try:
        parts = json.loads(read_file(folder / MANIFEST))["parts"]
        return {str(entry["file"]) for entry in parts.values()}
    except (FileNotFoundError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return set()


def _json_text(value: object) -> str:
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    # A name of a file may hold bytes that are no text, which JSON can only carry escaped.
    return text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


def _digest(manifest: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _well_formed(manifest: Mapping[str, Any]) -> bool:
    if set(manifest) != {"kind", "parts", "metadata"}:
        return False
    if not (isinstance(manifest["parts"], dict) and isinstance(manifest["metadata"], dict)):
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


def _delete_abandoned(folder: Path) -> None:
    """Delete what a killed save left behind; it may be as large as all that was saved."""
    for path in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


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
