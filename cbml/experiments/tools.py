"""The functions that a run takes from the rooms beside training, joined in one place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from cbml.bayes import PairStatistics
from cbml.errors import BadData
from cbml.evaluation import evaluate
from cbml.evaluation.grouping import agreement
from cbml.losses import build_loss
from cbml.training import Recipe, Tools

__all__ = ["TOOLS"]


def _make_loss(recipe: Recipe, classes: int) -> nn.Module:
    options = {"classes": classes, "dim": recipe.dim, "seed": recipe.seed}
    return build_loss(recipe.loss, recipe.loss_options, **options)


def _estimate(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, Any]:
    try:
        return PairStatistics.of(embeddings, labels).loss_record()
    except BadData as error:
        # Estimating is what happens when nothing is said, so the way out must be named.
        raise BadData(
            f"no constants of the loss follow from the training pictures: {error}; to train with "
            "the given ones: --set parameters=given"
        ) from None


TOOLS = Tools(make_loss=_make_loss, evaluate=evaluate, estimate=_estimate, agreement=agreement)
