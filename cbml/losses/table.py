"""All losses by name. A loss with proxies asks for `num_classes` and `embedding_size`."""

from torch import nn

from cbml.losses.baselines import BASELINES
from cbml.losses.contrastive_bayesian import CBMLLoss
from cbml.losses.variance import MetricVariance
from cbml.losses.variants import VARIANTS

__all__ = ["LOSSES"]

LOSSES: dict[str, type[nn.Module]] = {
    "cbml": CBMLLoss,
    **VARIANTS,
    "metric_variance": MetricVariance,
    **BASELINES,
}
