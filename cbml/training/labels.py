"""Labels that change between two passes: what a run asks for and what it gets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.data import Batches
from cbml.models import Embedder

__all__ = ["NewLabels", "Relabel"]


@dataclass(frozen=True)
class NewLabels:
    """Other labels for the pictures of a run.

    Args:
        labels: numbers of classes from 0. (N,)
        facts: what to write down about them, plain values.
        text: what to say about them.
    """

    labels: NDArray[np.int64]
    facts: Mapping[str, Any]
    text: str


Relabel = Callable[[Embedder, Batches], NewLabels | None]
