"""Pictures as plain arrays in a file of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData, MissingExtra
from cbml.files import replaced_file
from cbml.gallery.pictures import Listed, shown, write_bad
from cbml.gallery.reading import embedded_chunks
from cbml.models import Embedder
from cbml.models.progress import Progress

__all__ = ["Embedded", "embed_files", "write_vectors"]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Vectors of files.

    Args:
        listed: the files that could be read.
        vectors: theirs. (N, D)
        bad: path and reason of the others.
    """

    listed: tuple[Listed, ...]
    vectors: NDArray[np.float32]
    bad: tuple[tuple[str, str], ...]


def embed_files(model: Embedder, listed: Sequence[Listed]) -> Embedded:
    """The vectors of files; those that cannot be read are listed with their reasons.

    Args:
        model: gives the vectors.
        listed: the files.
    """
    good: list[Listed] = []
    bad: list[tuple[str, str]] = []
    rows = [np.empty((0, model.dim), dtype=np.float32)]
    with Progress("pictures embedded", len(listed)) as progress:
        for opened, vectors in embedded_chunks(model, listed):
            good += [one.listed for one in opened if not one.reason]
            bad += [(one.listed.path, one.reason) for one in opened if one.reason]
            rows.append(vectors)
            progress.show(len(good) + len(bad))
    if not good:
        raise BadData(f"none of the pictures can be read; the first: {bad[0][0]}: {bad[0][1]}")
    return Embedded(tuple(good), np.concatenate(rows), tuple(bad))


def write_vectors(path: Path, embedded: Embedded) -> None:
    """Write vectors, paths, names and labels as arrays (.npz) or columns (.parquet).

    A picture without a label has the empty label. What could not be read goes to bad_images.csv
    beside the file.

    Args:
        path: the file to create or replace.
        embedded: what to write.
    """
    columns = {
        "path": [shown(one.path) for one in embedded.listed],
        "name": [one.name for one in embedded.listed],
        "label": [one.label or "" for one in embedded.listed],
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
        write_bad(path.parent / "bad_images.csv", embedded.bad)


def _write_parquet(path: Path, columns: dict[str, list[str]], vectors: NDArray[np.float32]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "table") from None
    rows = pyarrow.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    parquet.write_table(pyarrow.table({**columns, "vector": rows}), path)
