"""What other programs read: embeddings as plain arrays, groups of near-duplicates as a table."""

import hashlib
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from cbml.errors import BadData, MissingExtra
from cbml.files import replaced_file, write_csv
from cbml.gallery.images import ImageRef, shown, write_bad_images
from cbml.gallery.loading import CHUNK, embedded_chunks, fingerprint
from cbml.gallery.storage import read_state
from cbml.gallery.thumbnails import near_duplicate_groups
from cbml.models import Embedder
from cbml.progress import Progress
from cbml.regular import open_regular


@dataclass(frozen=True, eq=False)
class EmbeddedFiles:
    """Embeddings of files.

    Args:
        refs: The files that could be read.
        vectors: Their embeddings. (N, D)
        bad: Path and reason of the others.
    """

    refs: tuple[ImageRef, ...]
    vectors: NDArray[np.float32]
    bad: tuple[tuple[str, str], ...]


def embed_files(
    model: Embedder,
    refs: Sequence[ImageRef],
    *,
    out: Path | None = None,
    group: dist.ProcessGroup | None = None,
) -> EmbeddedFiles:
    """The embeddings of files; those that cannot be read are listed with their reasons.

    Args:
        model: The model that embeds the images.
        refs: The files, as `list_images` gives them.
        out: The file that will hold them. Finished chunks are kept beside it until `write_vectors`
            has written it, so that the same call resumes after an interruption.
        group: Group of torch.distributed whose other processes call `embed_share`.
    """
    chunks = _Chunks(None) if out is None else _Chunks(_chunk_folder(out, model, refs))
    done = chunks.finished()
    with Progress("images embedded", len(refs)) as progress:
        progress.show(min(len(refs), CHUNK * len(done)))
        rest = refs[CHUNK * len(done) :]
        for loaded, vectors, _ in embedded_chunks(model, rest, group=group):
            done.append(chunks.add(len(done), [one.reason for one in loaded], vectors))
            progress.show(min(len(refs), CHUNK * len(done)))
    reasons = [reason for chunk in done for reason in chunk[0]]
    good = tuple(ref for ref, reason in zip(refs, reasons, strict=True) if not reason)
    bad = tuple((ref.path, reason) for ref, reason in zip(refs, reasons, strict=True) if reason)
    if not good:
        raise BadData(f"none of the images can be read; the first: {bad[0][0]}: {bad[0][1]}")
    return EmbeddedFiles(good, np.concatenate([chunk[1] for chunk in done]), bad)


# Why each file of a chunk cannot be used, or nothing; and the embeddings of the others.
_Chunk = tuple[list[str], NDArray[np.float32]]


class _Chunks:
    """Finished chunks in a folder, one file each; or nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def finished(self) -> list[_Chunk]:
        """All chunks from the first, up to one that is missing or damaged."""
        found: list[_Chunk] = []
        while self.folder is not None:
            try:
                path = self.folder / f"{len(found):06}.npz"
                with open_regular(path) as file, np.load(file) as arrays:
                    found.append((arrays["reasons"].tolist(), arrays["vectors"]))
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                break
        return found

    def add(self, number: int, reasons: list[str], vectors: NDArray[np.float32]) -> _Chunk:
        """Keep a chunk."""
        if self.folder is not None:
            with replaced_file(self.folder / f"{number:06}.npz") as path, path.open("wb") as file:
                np.savez(file, reasons=np.array(reasons), vectors=vectors)
        return reasons, vectors


def _chunk_folder(out: Path, model: Embedder, refs: Sequence[ImageRef]) -> Path:
    """A folder for this model and these files as they are now; those of others are deleted."""
    digest = hashlib.sha256(fingerprint(model).encode())
    for ref in refs:
        try:
            status = os.stat(ref.path)
            identity = (ref.path, status.st_size, status.st_mtime_ns)
        except OSError:
            identity = (ref.path, -1, -1)
        digest.update(repr(identity).encode())
    chosen = out.parent / f".{out.name}.{digest.hexdigest()[:16]}.chunks"
    _delete_chunks(out, but=chosen)
    return chosen


def _delete_chunks(out: Path, but: Path | None = None) -> None:
    for folder in out.parent.iterdir() if out.parent.is_dir() else ():
        ours = folder.name.startswith(f".{out.name}.") and folder.name.endswith(".chunks")
        if ours and folder != but:
            shutil.rmtree(folder, ignore_errors=True)


def write_vectors(path: Path, embedded: EmbeddedFiles) -> None:
    """Write embeddings, paths, names and labels as arrays (.npz) or columns (.parquet).

    An image without a label has the empty label. What could not be read goes to bad_images.csv
    beside the file.

    Args:
        path: The file to create or replace.
        embedded: What to write.
    """
    columns = {
        "path": [shown(ref.path) for ref in embedded.refs],
        "name": [ref.name for ref in embedded.refs],
        "label": [ref.label or "" for ref in embedded.refs],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as temporary:
        if path.suffix == ".parquet":
            _write_parquet(temporary, columns, embedded.vectors)
        else:
            with temporary.open("wb") as file:
                np.savez(
                    file,
                    vectors=embedded.vectors,
                    paths=np.array(columns["path"]),
                    names=np.array(columns["name"]),
                    labels=np.array(columns["label"]),
                )
    if embedded.bad:
        write_bad_images(path.parent / "bad_images.csv", embedded.bad)
    _delete_chunks(path)


def write_near_duplicates(path: Path, folder: Path | str) -> int:
    """Write groups of near-duplicate images as a CSV table; gives the number of groups.

    Args:
        path: The file to create or replace.
        folder: Folder of the gallery.
    """
    state = read_state(Path(folder))
    groups = near_duplicate_groups(state.signatures)
    rows: list[list[object]] = []
    for number, members in enumerate(groups, start=1):
        images = [state.images[index] for index in members]
        contents = Counter(image.sha256 for image in images)
        for image in images:
            copied = int(contents[image.sha256] > 1)  # another of the group has the same bytes
            rows.append([number, image.id, image.name, image.label or "", image.path, copied])
    write_csv(path, ["group", "id", "name", "label", "path", "same_content"], rows)
    return len(groups)


def _write_parquet(path: Path, columns: dict[str, list[str]], vectors: NDArray[np.float32]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "table") from None
    rows = pyarrow.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    with path.open("wb") as file:  # its name need not be text
        parquet.write_table(pyarrow.table({**columns, "vector": rows}), file)
