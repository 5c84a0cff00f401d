"""Files from their official addresses, checked, resumed, or refused in one line; the cache."""

import hashlib
import http.client
import math
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cbml.errors import BadData
from cbml.files import locked
from cbml.program import command
from cbml.regular import open_regular


def cache_folder() -> Path:
    """The folder named by CBML_CACHE, else `cbml` in the user's cache folder."""
    named = os.environ.get("CBML_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "cbml"


Progress = Callable[[int, int], None]

_ATTEMPTS = 5
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Download:
    """One file to download.

    Args:
        url: Official address of the file.
        digest: "sha256:..." or "md5:..." of its bytes, as published.
        size: Length in bytes; 0 when not published.
    """

    url: str
    digest: str
    size: int = 0

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


def get(
    name: str,
    files: Sequence[Download],
    folder: Path,
    *,
    page: str = "",
    progress: Progress | None = None,
) -> list[Path]:
    """Download the files of a dataset; files that are already there are checked and kept.

    Args:
        name: The dataset, as in `cbml data get NAME`.
        files: The files to download.
        folder: Folder for the files.
        page: Where its owners can be asked, if there is nothing to download.
        progress: Called with bytes done and bytes in all (0 when unknown) of each file.
    """
    given = command("data", "check", "ARCHIVE", "--as", name)
    if not files:
        raise BadData(
            f"{name}: its owners require an agreement first, see {page}; then give the "
            f"folder or archive you received, as in  {given}"
        )
    remedy = f"if you have the archive, give it instead: {given}"
    return [download(file, folder, remedy=remedy, progress=progress) for file in files]


def download(
    file: Download, folder: Path, *, remedy: str = "", progress: Progress | None = None
) -> Path:
    """Download one file, resuming an interrupted attempt, and check its digest.

    Args:
        file: The file to download.
        folder: Folder for the file.
        remedy: What else the user can do, added to messages.
        progress: Called with bytes done and bytes in all (0 when unknown).
    """
    target = folder / file.name
    part = folder / f"{file.name}.part"
    with locked(folder, name=f"{file.name}.lock", wait=math.inf):
        if target.exists():
            found = _digest(target, file)
            if found != file.digest:
                raise BadData(f"{target}: is {found}, expected {file.digest}; delete it; {remedy}")
            return target
        for attempt in range(_ATTEMPTS):
            before = part.stat().st_size if part.exists() else 0
            try:
                _continue(file, part, progress)
                break
            except (OSError, http.client.HTTPException) as error:
                advanced = part.exists() and part.stat().st_size > before
                if attempt + 1 == _ATTEMPTS or not advanced:
                    raise BadData(_failure(file, error, remedy)) from None
        _check(part, file, remedy)
        os.replace(part, target)
    return target


def _continue(file: Download, part: Path, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(file.url, headers={"User-Agent": "cbml"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            resumed = response.status == 206
            done = done if resumed else 0  # a server without ranges sends everything again
            left = int(response.headers.get("Content-Length") or 0)
            total = done + left
            with open_regular(part, "ab" if resumed else "wb") as output:
                while chunk := response.read(_CHUNK):
                    output.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
            if left and done < total:
                raise http.client.IncompleteRead(b"", total - done)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 416 or not done:  # 416: there is nothing beyond what we have
                raise


def _check(part: Path, file: Download, remedy: str) -> None:
    found = _digest(part, file)
    if found != file.digest:
        size = part.stat().st_size
        part.unlink()  # nothing can be added to it that would make it right
        raise BadData(
            f"{file.url}: gave {size:,} bytes that are {found}, expected {file.digest}; removed, "
            f"try again; {remedy}".removesuffix("; ")
        )


def _digest(path: Path, file: Download) -> str:
    kind = file.digest.partition(":")[0]
    with open_regular(path) as opened:
        found = hashlib.file_digest(opened, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{found.hexdigest()}"


def _failure(file: Download, error: Exception, remedy: str) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return f"{file.url}: cannot be downloaded ({reason}); {remedy}".removesuffix("; ")
