"""Embeddings of a set of images, by all processes together."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.data import PackedDataset
from cbml.models import embed, embed_across
from cbml.training.distributed import Distributed


class _Source(Protocol):
    def sized(self, index: int, length: int) -> Tensor: ...


def embed_dataset(
    model: nn.Module, dataset: PackedDataset, distributed: Distributed | None = None
) -> NDArray[np.float32]:
    """Unit vectors of all readable images of a dataset, (N, D).

    Args:
        model: an Embedder, or another network with a `preprocessing`, whose crop is the one that
            the dataset was packed for.
        dataset: the images.
        distributed: processes that share the work; each gets all vectors.
    """
    return embed_indices(model, dataset.packed, dataset.indices, distributed)


def embed_indices(
    model: nn.Module,
    source: _Source,
    indices: Sequence[int] | NDArray[np.int64],
    distributed: Distributed | None = None,
) -> NDArray[np.float32]:
    """Unit vectors of some images of a source, in the order of their indices, (N, D)."""
    length: int = model.preprocessing.resize  # type: ignore[assignment]
    listed: list[Any] = [int(index) for index in indices]

    def load(index: int) -> Tensor:
        return source.sized(index, length)

    if distributed is None or distributed.group is None:
        return embed(model, listed, load=load, progress=False)
    return embed_across(model, listed, distributed.group, load=load, progress=False)
