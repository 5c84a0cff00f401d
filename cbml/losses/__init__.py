"""Embeddings and labels in, one number out: CBML, the variance constraint, and the rivals.

The table of all losses is made on first use: the rivals bring pytorch-metric-learning along, which
takes a second to import, and many users want one loss.
"""

from typing import TYPE_CHECKING, Any

from cbml.losses.build import build_loss
from cbml.losses.contrastive_bayesian import FINE_GRAINED, PRODUCTS, CBMLLoss
from cbml.losses.ratios import LinearRatio, QuadraticRatio
from cbml.losses.terms import LossTerms
from cbml.losses.variance import MetricVariance, WithVariance

if TYPE_CHECKING:
    from cbml.losses.table import LOSSES as LOSSES

__all__ = [
    "FINE_GRAINED",
    "LOSSES",
    "PRODUCTS",
    "CBMLLoss",
    "LinearRatio",
    "LossTerms",
    "MetricVariance",
    "QuadraticRatio",
    "WithVariance",
    "build_loss",
]


def __getattr__(name: str) -> Any:
    if name == "LOSSES":
        from cbml.losses.table import LOSSES

        return LOSSES
    raise AttributeError(f"module 'cbml.losses' has no attribute {name!r}")
