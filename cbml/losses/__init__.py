"""Embeddings and labels in, one number out: CBML, the variance constraint, and the rivals."""

from torch import nn

from cbml.losses.contrastive_bayesian import FINE_GRAINED, PRODUCTS, CBMLLoss
from cbml.losses.ratios import LinearRatio, QuadraticRatio
from cbml.losses.rivals import RIVALS
from cbml.losses.terms import LossTerms
from cbml.losses.variance import MetricVariance, WithVariance
from cbml.losses.variants import VARIANTS

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
]

# Name -> class. A loss with proxies asks for `num_classes` and `embedding_size`.
LOSSES: dict[str, type[nn.Module]] = {
    "cbml": CBMLLoss,
    **VARIANTS,
    "metric_variance": MetricVariance,
    **RIVALS,
}
