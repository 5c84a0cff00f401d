"""The paper's sets from their official addresses: checked, resumed, or refused in one line."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cbml.data.cache import locked
from cbml.errors import BadData

__all__ = ["SOURCES", "Download", "Source", "download", "get"]

Progress = Callable[[int, int], None]

_ATTEMPTS = 5
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Download:
    """One file to fetch.

    Args:
        url: its official address.
        digest: "sha256:..." or "md5:..." of its bytes, as published.
        size: its length in bytes; 0 when not published.
    """

    url: str
    digest: str
    size: int = 0

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """Where a set comes from.

    Args:
        title: its full name.
        page: its home page, with the terms of use.
        files: what to fetch; empty where the owners ask for an agreement first.
    """

    title: str
    page: str
    files: tuple[Download, ...] = ()


_CARS = "http://ai.stanford.edu/~jkrause/car196/"
SOURCES = {
    "cub": Source(
        "Caltech-UCSD Birds-200-2011",
        "https://data.caltech.edu/records/65de6-vp158",
        (
            Download(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "sha256:0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
                1_150_585_339,
            ),
        ),
    ),
    "cars": Source(
        "Stanford Cars (Cars-196)",
        "https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        (
            Download(f"{_CARS}car_ims.tgz", "md5:d5c8f0aa497503f355e17dc7886c3f14"),
            Download(f"{_CARS}cars_annos.mat", "md5:b407c6086d669747186bd1d764ff9dbc"),
        ),
    ),
    "sop": Source(
        "Stanford Online Products",
        "https://cvgl.stanford.edu/projects/lifted_struct/",
        (
            Download(
                "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                "md5:7f73d41a2f44250d4779881525aea32e",
            ),
        ),
    ),
    "inshop": Source(
        "DeepFashion In-Shop Clothes Retrieval",
        "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    ),
    "imagenet": Source("ImageNet ILSVRC 2012", "https://image-net.org/download-images.php"),
}


def get(
    name: str, folder: Path, *, source: Source | None = None, progress: Progress | None = None
) -> list[Path]:
    """Fetch the files of a set into a folder; files that are already there are checked and kept.

    Args:
        name: "cub", "cars", "sop", "inshop" or "imagenet".
        folder: where the files go.
        source: other addresses than the official ones.
        progress: called with bytes done and bytes in all (0 when unknown) of each file.
    """
    if source is None:
        if name not in SOURCES:
            raise BadData(f"{name}: no such set to fetch; known are {', '.join(SOURCES)}")
        source = SOURCES[name]
    if not source.files:
        raise BadData(
            f"{name}: its owners ask for an agreement first, see {source.page}; then give the "
            f"folder or archive you received, as in  cbml data check ARCHIVE --as {name}"
        )
    remedy = f"if you have the archive, give it instead: cbml data check ARCHIVE --as {name}"
    return [download(file, folder, remedy=remedy, progress=progress) for file in source.files]


def download(
    file: Download, folder: Path, *, remedy: str = "", progress: Progress | None = None
) -> Path:
    """Fetch one file, going on where an earlier attempt stopped, and check its digest.

    Args:
        file: what to fetch.
        folder: where it goes.
        remedy: what else the user can do, added to messages.
        progress: called with bytes done and bytes in all (0 when unknown).
    """
    target = folder / file.name
    part = folder / f"{file.name}.part"
    with locked(folder / f"{file.name}.lock"):
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
        with urllib.request.urlopen(request, timeout=30) as answer:
            resumed = answer.status == 206
            done = done if resumed else 0  # a server without ranges sends everything again
            left = int(answer.headers.get("Content-Length") or 0)
            total = done + left
            with part.open("ab" if resumed else "wb") as output:
                while chunk := answer.read(_CHUNK):
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
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{found.hexdigest()}"


def _failure(file: Download, error: Exception, remedy: str) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return f"{file.url}: cannot be fetched ({reason}); {remedy}".removesuffix("; ")
