"""Files -> embedding, content hash and signature of each image, read once, a few ahead."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.data import BYTE_LIMIT, UnreadableImage, prefetch, read_image
from cbml.errors import BadData, MissingExtra
from cbml.files import replaced_file
from cbml.gallery.images import ImageRef, shown, write_bad_images
from cbml.gallery.thumbnails import Signature, signature_of
from cbml.models import Embedder, embed, embed_outputs
from cbml.outputs import Outputs, Reranker
from cbml.progress import Progress

CHUNK = 256  # images

Frame = Callable[[Tensor], Tensor]
Parts = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class LoadedImage:
    """A file that was read: what the model will see of it, (3, crop, crop), and its metadata.

    `reason` says why it cannot be used, and is empty where it can.
    """

    ref: ImageRef
    reason: str
    framed: Tensor
    signature: Signature
    width: int = 0
    height: int = 0
    bytes: int = 0
    modified: int = 0
    sha256: str = ""


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


def load_images(
    refs: Sequence[ImageRef], frame: Frame, *, workers: int = 2
) -> Iterator[LoadedImage]:
    """Every image in its order; one that cannot be read comes with its reason.

    `frame` cuts out what the model sees, at once, since whole images may be large.
    """
    loaded = prefetch(lambda ref: _load(ref, frame), refs, workers=workers, ahead=8 * workers)
    with contextlib.closing(loaded):
        yield from loaded


def embedded_chunks(
    model: Embedder, refs: Sequence[ImageRef], parts: Sequence[str] = ()
) -> Iterator[tuple[list[LoadedImage], NDArray[np.float32], Parts]]:
    """Files in chunks, with embeddings and parts of those of the chunk that can be read. (M, D)"""
    loaded = load_images(refs, model.preprocessing.frame)
    framed = FramedModel(model)
    while chunk := list(itertools.islice(loaded, CHUNK)):
        images = [one.framed for one in chunk if not one.reason]
        if parts:
            outputs = embed_outputs(framed, images, parts)
            found = {name: outputs.parts[name].numpy() for name in parts}
            yield chunk, outputs.embeddings.numpy(), found
        else:
            yield chunk, embed(framed, images, progress=False), {}


def embed_files(model: Embedder, refs: Sequence[ImageRef]) -> EmbeddedFiles:
    """The embeddings of files; those that cannot be read are listed with their reasons.

    Args:
        model: Gives the embeddings.
        refs: The files, as `list_images` gives them.
    """
    good: list[ImageRef] = []
    bad: list[tuple[str, str]] = []
    vectors = [np.empty((0, model.dim), dtype=np.float32)]
    with Progress("images embedded", len(refs)) as progress:
        for loaded, embedded, _ in embedded_chunks(model, refs):
            good += [one.ref for one in loaded if not one.reason]
            bad += [(one.ref.path, one.reason) for one in loaded if one.reason]
            vectors.append(embedded)
            progress.show(len(good) + len(bad))
    if not good:
        raise BadData(f"none of the images can be read; the first: {bad[0][0]}: {bad[0][1]}")
    return EmbeddedFiles(tuple(good), np.concatenate(vectors), tuple(bad))


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


def fingerprint(model: Embedder) -> str:
    """Sixteen digits of a hash over all that decides about the embeddings: settings and weights."""
    digest = hashlib.sha256()
    settings = {key: value for key, value in model.describe().items() if key != "provenance"}
    digest.update(json.dumps(settings, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


class FramedModel(nn.Module):
    """The model for images that have been framed already."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.model = model
        frame = model.preprocessing
        self.preprocessing = dataclasses.replace(frame, resize=frame.crop)  # leaves them alone

    def forward(self, images: Tensor) -> Tensor:
        """The embeddings of framed images, (N, D)."""
        vectors: Tensor = self.model(images)
        return vectors

    def forward_outputs(self, images: Tensor, parts: Sequence[str] = ()) -> Outputs:
        """The same with parts."""
        return self.model.forward_outputs(images, parts)


def reranked_order(reranker: Reranker, query: Outputs, candidates: Outputs) -> NDArray[np.int64]:
    """The order in which a reranker puts the candidates of one query, (M,)."""
    indices = torch.arange(len(candidates.embeddings))[None]
    scores = reranker(query, candidates, indices)[0].numpy()
    return np.argsort(-scores, kind="stable")


def as_outputs(vectors: NDArray[np.float32], parts: Parts) -> Outputs:
    """Embeddings and parts as a reranker takes them."""
    tensors = {name: torch.from_numpy(part) for name, part in parts.items()}
    return Outputs(torch.from_numpy(vectors), tensors)


def _load(ref: ImageRef, frame: Frame) -> LoadedImage:
    try:
        if not stat.S_ISREG(os.stat(ref.path).st_mode):  # a pipe would be waited for without end
            return _unreadable(ref, "not a regular file")
        with open(ref.path, "rb") as file:
            # Of the open file: what is hashed and decoded is what these values speak of.
            status = os.fstat(file.fileno())
            content = file.read(BYTE_LIMIT + 1)
        if len(content) > BYTE_LIMIT:
            raise UnreadableImage(ref.path, f"larger than {BYTE_LIMIT >> 20} MB")
        image = read_image(content)
    except UnreadableImage as refusal:
        return _unreadable(ref, refusal.reason)
    except OSError as error:
        return _unreadable(ref, f"cannot be opened ({error.strerror})")
    return LoadedImage(
        ref,
        "",
        frame(torch.from_numpy(np.array(image)).permute(2, 0, 1)),
        signature_of(image),
        *image.size,
        bytes=len(content),
        modified=status.st_mtime_ns,
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _unreadable(ref: ImageRef, reason: str) -> LoadedImage:
    return LoadedImage(ref, reason, torch.empty(0, dtype=torch.uint8), np.empty(0, np.uint8))


def _write_parquet(path: Path, columns: dict[str, list[str]], vectors: NDArray[np.float32]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "table") from None
    rows = pyarrow.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    parquet.write_table(pyarrow.table({**columns, "vector": rows}), path)
