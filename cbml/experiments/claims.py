"""Who works on what: a folder shared by several machines is divided by files of claims.

A claim is a numbered file, `claim-1.json`, `claim-2.json` ..., and the highest number holds. It is
made whole by a hard link, which only one of many contenders can make; its holder renews its time
stamp. A claim that was given back, whose process is gone, or that has not been renewed for
STALE_SECONDS is followed by the next number. No file of the highest number is ever deleted, so
that two contenders who judge the same claim stale ask for the same next number, and one gets it.
"""

import contextlib
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cbml.files import write_json

__all__ = ["STALE_SECONDS", "Claim", "ClaimLost", "claimed"]

STALE_SECONDS = 180.0
_RENEW_SECONDS = 15.0


class ClaimLost(Exception):
    """Another process has taken over, because this one did not renew its claim in time."""


class Claim:
    """A claim that this process holds, renewed by a thread until it is given back.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lost = False
        self._seen = time.time()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise ClaimLost if another process works here now."""
        if time.time() - self._seen > _RENEW_SECONDS * 4:  # the machine slept, or the disk did
            self._look()
        if self._lost:
            raise ClaimLost(f"{self.path.parent}: taken over by another process")

    def give_back(self) -> None:
        """Let others claim, at once."""
        self._done.set()
        self._thread.join()
        if not self._lost:
            write_json(self.path, {"given_back": True})

    def _renew(self) -> None:
        while not self._lost and not self._done.wait(_RENEW_SECONDS):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # a file server that stumbles is asked again
            if _newest(self.path.parent) != self.path:
                self._lost = True
            else:
                os.utime(self.path)
                self._seen = time.time()


@contextlib.contextmanager
def claimed(folder: Path, *, stale_seconds: float = STALE_SECONDS) -> Iterator[Claim | None]:
    """Hold the claim of a folder inside the block; None where another process holds it.

    Args:
        folder: made if missing.
        stale_seconds: after which a claim that was not renewed is void.
    """
    folder.mkdir(parents=True, exist_ok=True)
    newest = _newest(folder)
    if newest is not None and _held(newest, stale_seconds):
        yield None
        return
    mine = _path(folder, 1 if newest is None else _number(newest) + 1)
    if not _made(mine):
        yield None
        return
    claim = Claim(mine)
    try:
        yield claim
    finally:
        claim.give_back()


def _made(path: Path) -> bool:
    """Make a claim, whole and only if nobody else did; older ones are deleted."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as scratch:
        whole = Path(scratch) / "claim"
        write_json(whole, {"host": _host(), "pid": os.getpid(), "started": _started(os.getpid())})
        try:
            os.link(whole, path)
        except FileExistsError:
            return False
    if _newest(path.parent) != path:  # a listing that was made amid a change can miss the newest
        return False
    for old in path.parent.glob("claim-*.json"):
        if _number(old) < _number(path):
            old.unlink(missing_ok=True)
    return True


def _held(path: Path, stale_seconds: float) -> bool:
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        age = _now(path.parent) - path.stat().st_mtime
    except (FileNotFoundError, ValueError):
        return True  # it changed this moment: somebody is at work
    if facts.get("given_back") or age > stale_seconds:
        return False
    if facts.get("host") != _host() or facts.get("started") is None:
        return True  # of another machine, or one that does not tell of its processes
    return _started(int(facts["pid"])) == str(facts["started"])


def _now(folder: Path) -> float:
    """The time by the clock that stamps the files, which may be another machine's."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as probe:
        return os.fstat(probe.fileno()).st_mtime


def _newest(folder: Path) -> Path | None:
    return max(folder.glob("claim-*.json"), key=_number, default=None)


def _path(folder: Path, number: int) -> Path:
    return folder / f"claim-{number}.json"


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("claim-"))


def _host() -> str:
    """This machine since it started, and the space in which its process numbers count."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        started = space = ""
    return f"{platform.node()} {started} {space}".strip()


def _started(pid: int) -> str | None:
    """When a process of this machine started, in the system's own units; None if it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] == "Z" else words[19]
