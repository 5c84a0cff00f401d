"""Embeddings and labels in, one number out: CBML, the variance constraint, and the rivals."""

from cbml.losses.contrastive_bayesian import FINE_GRAINED, PRODUCTS, CBMLLoss
from cbml.losses.ratios import LinearRatio, QuadraticRatio
from cbml.losses.terms import LossTerms
from cbml.losses.variance import MetricVariance

__all__ = [
    "FINE_GRAINED",
    "PRODUCTS",
    "CBMLLoss",
    "LinearRatio",
    "LossTerms",
    "MetricVariance",
    "QuadraticRatio",
]
