"""Files -> embedding, content hash and signature of each image, read once, a few ahead."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.data import BYTE_LIMIT, UnreadableImage, prefetch, read_image
from cbml.gallery.images import GalleryImage, ImageRef
from cbml.gallery.thumbnails import Signature, signature_of
from cbml.models import Embedder, embed_outputs
from cbml.outputs import Outputs, Reranker
from cbml.regular import open_regular

CHUNK = 256  # images
_CPU, _NO_PIXELS = torch.device("cpu"), torch.empty(0, dtype=torch.uint8)

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

    def as_listed(self, image_id: int) -> GalleryImage:
        """What a gallery keeps of it."""
        metadata = (self.bytes, self.modified, self.sha256, self.width, self.height)
        return GalleryImage(image_id, self.ref.path, self.ref.name, self.ref.label, *metadata)


# The files of a chunk, and the embeddings, (M, D), and parts of those that can be read.
EmbeddedChunk = tuple[list[LoadedImage], NDArray[np.float32], Parts]


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
    model: Embedder,
    refs: Sequence[ImageRef],
    parts: Sequence[str] = (),
    group: dist.ProcessGroup | None = None,
) -> Iterator[EmbeddedChunk]:
    """Files in chunks, with embeddings and parts of those of the chunk that can be read.

    Where a group is given, this is its first process, and every other one calls `embed_share`: they
    take turns with the chunks, which come in their order and are the same as those of one process.
    """
    if group is None:
        yield from _chunks(model, refs, parts)
        return
    dist.broadcast_object_list([list(refs), tuple(parts)], src=0, group=group, device=_CPU)
    world = dist.get_world_size(group)
    own = _chunks(model, _share(refs, 0, world), parts)
    for number in range(math.ceil(len(refs) / CHUNK)):
        if number % world == 0:
            yield next(own)
        else:
            received: list[Any] = [None]
            dist.recv_object_list(received, src=number % world, group=group, device=_CPU)
            yield received[0]


def embed_share(model: Embedder, group: dist.ProcessGroup) -> None:
    """Embed what falls to this process, for the first one of the group, which does the rest.

    Args:
        model: The same in every process.
        group: Group of torch.distributed.
    """
    told: list[Any] = [None, None]
    dist.broadcast_object_list(told, src=0, group=group, device=_CPU)
    refs, parts = told
    share = _share(refs, dist.get_rank(group), dist.get_world_size(group))
    for chunk in _chunks(model, share, parts):
        dist.send_object_list([chunk], dst=0, group=group, device=_CPU)


def _share(refs: Sequence[ImageRef], rank: int, world: int) -> list[ImageRef]:
    """Every world-th chunk."""
    starts = range(rank * CHUNK, len(refs), world * CHUNK)
    return [ref for start in starts for ref in refs[start : start + CHUNK]]


def _chunks(
    model: Embedder, refs: Sequence[ImageRef], parts: Sequence[str]
) -> Iterator[EmbeddedChunk]:
    loaded = load_images(refs, model.preprocessing.frame)
    framed = FramedModel(model)
    while chunk := list(itertools.islice(loaded, CHUNK)):
        images = [one.framed for one in chunk if not one.reason]
        # Their pixels will have done their work; what is left is small.
        chunk = [dataclasses.replace(one, framed=_NO_PIXELS) for one in chunk]
        outputs = embed_outputs(framed, images, parts)
        found = {name: part.numpy() for name, part in outputs.parts.items()}
        yield chunk, outputs.embeddings.numpy(), found


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
        self.training = model.training

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
        with open_regular(Path(ref.path)) as file:
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
    return LoadedImage(ref, reason, _NO_PIXELS, np.empty(0, np.uint8))
