"""Files -> vector, content hash and look of each picture, read once, a few ahead."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.data.ahead import in_order
from cbml.data.decode import BYTE_LIMIT, BadPicture, read_picture
from cbml.gallery.likeness import Look, look_of
from cbml.gallery.pictures import Listed
from cbml.models import Embedder, embed

__all__ = ["Opened", "embedded_chunks", "fingerprint", "open_pictures"]

CHUNK = 256  # pictures

Frame = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Opened:
    """A file that was read.

    Args:
        listed: what was to be read.
        reason: why it cannot be shown; empty when it can.
        framed: what the model will see of it, uint8; empty when it cannot be shown. (3, crop, crop)
        look: as `look_of` gives it. (LOOK,)
        width: in pixels, upright.
        height: likewise.
        bytes: the length of the file.
        modified: when it was last written, in nanoseconds.
        sha256: of the file.
    """

    listed: Listed
    reason: str
    framed: Tensor
    look: Look
    width: int = 0
    height: int = 0
    bytes: int = 0
    modified: int = 0
    sha256: str = ""


def open_pictures(listed: Sequence[Listed], frame: Frame, *, workers: int = 2) -> Iterator[Opened]:
    """Every picture in its order; one that cannot be read comes with its reason.

    Args:
        listed: the files.
        frame: cuts out what the model sees; done at once, since whole pictures may be large.
        workers: threads that read, decode and frame ahead.
    """
    opened = in_order(lambda one: _open(one, frame), listed, workers=workers, ahead=8 * workers)
    with contextlib.closing(opened):
        yield from opened


def embedded_chunks(
    model: Embedder, listed: Sequence[Listed]
) -> Iterator[tuple[list[Opened], NDArray[np.float32]]]:
    """Files in chunks, with the vectors of those of the chunk that can be read, (M, D).

    Args:
        model: gives the vectors.
        listed: the files.
    """
    opened = open_pictures(listed, model.preprocessing.frame)
    framed = _Framed(model)
    while chunk := list(itertools.islice(opened, CHUNK)):
        pictures = [one.framed for one in chunk if not one.reason]
        yield chunk, embed(framed, pictures, progress=False)


def fingerprint(model: Embedder) -> str:
    """Sixteen digits of a hash over all that decides about the vectors: settings and weights.

    Args:
        model: any embedder.
    """
    digest = hashlib.sha256()
    facts = {key: value for key, value in model.describe().items() if key != "provenance"}
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


class _Framed(nn.Module):
    """The model for pictures that have been framed already."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.model = model
        frame = model.preprocessing
        self.preprocessing = dataclasses.replace(frame, resize=frame.crop)  # leaves them alone

    def forward(self, pictures: Tensor) -> Tensor:
        vectors: Tensor = self.model(pictures)
        return vectors


def _open(listed: Listed, frame: Frame) -> Opened:
    try:
        with open(listed.path, "rb") as file:
            # Of the open file: what is hashed and decoded is what these facts speak of.
            status = os.fstat(file.fileno())
            content = file.read(BYTE_LIMIT + 1)
        if len(content) > BYTE_LIMIT:
            raise BadPicture(listed.path, f"larger than {BYTE_LIMIT >> 20} MB")
        picture = read_picture(content)
    except BadPicture as refusal:
        return _unreadable(listed, refusal.reason)
    except OSError as error:
        return _unreadable(listed, f"cannot be opened ({error.strerror})")
    return Opened(
        listed,
        "",
        frame(torch.from_numpy(np.array(picture)).permute(2, 0, 1)),
        look_of(picture),
        *picture.size,
        bytes=len(content),
        modified=status.st_mtime_ns,
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _unreadable(listed: Listed, reason: str) -> Opened:
    return Opened(listed, reason, torch.empty(0, dtype=torch.uint8), np.empty(0, np.uint8))
