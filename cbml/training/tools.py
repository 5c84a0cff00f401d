"""What a run needs from rooms that training does not know: the loss, the scores, probabilities."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from cbml.training.assembly import Evaluate, Rows
from cbml.training.recipe import Recipe

__all__ = ["Estimate", "Tools"]

_Labels = NDArray[np.int64]
# Embeddings and labels in; out comes a record with the loss's "options" and what they come from.
Estimate = Callable[[Rows, _Labels], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Functions that a run calls; the last four are left out where nothing asks for them.

    Args:
        make_loss: gives the loss of a recipe for a number of classes.
        evaluate: embeddings and labels in, scores out, as `cbml.evaluate`.
        estimate: gives the loss's constants for parameters="from-data", from embeddings and labels
            of training pictures.
        agreement: NMI and AMI of true labels and clusters, for study=true.
        calibrate: gives what calibration.json shall hold, from embeddings and labels of the
            validation pictures by the trained model; None keeps nothing.
        check: gives how far calibration.json holds on the test pictures, where they are looked at;
            takes its path, then what `evaluate` takes.
    """

    make_loss: Callable[[Recipe, int], nn.Module]
    evaluate: Evaluate
    estimate: Estimate | None = None
    agreement: Callable[[_Labels, _Labels], tuple[float, float]] | None = None
    calibrate: Callable[[Rows, _Labels], Mapping[str, Any] | None] | None = None
    check: Callable[..., Mapping[str, Any]] | None = None
