"""Contrastive Bayesian metric learning: see which pictures belong together, and search with it.

Names are imported on first use, so that `import cbml` and `cbml --help` stay quick: torch alone
takes seconds.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbml.bayes import MatchProbability as MatchProbability
    from cbml.bayes import PairHistogram as PairHistogram
    from cbml.bayes import PairStatistics as PairStatistics
    from cbml.data import ClassBalancedSampler as ClassBalancedSampler
    from cbml.data import ImageSet as ImageSet
    from cbml.data import datasets as datasets
    from cbml.evaluation import Scores as Scores
    from cbml.evaluation import evaluate as evaluate
    from cbml.gallery import Gallery as Gallery
    from cbml.index import Index as Index
    from cbml.index import Matches as Matches
    from cbml.losses import LOSSES as LOSSES
    from cbml.losses import CBMLLoss as CBMLLoss
    from cbml.losses import LinearRatio as LinearRatio
    from cbml.losses import MetricVariance as MetricVariance
    from cbml.losses import QuadraticRatio as QuadraticRatio
    from cbml.models import BACKBONES as BACKBONES
    from cbml.models import Embedder as Embedder
    from cbml.models import Execution as Execution
    from cbml.models import Preprocessing as Preprocessing
    from cbml.models import embed as embed
    from cbml.models import export_onnx as export_onnx
    from cbml.models import from_hub as from_hub
    from cbml.models import push_to_hub as push_to_hub
    from cbml.training import fit as fit

_HOME = {
    "MatchProbability": "cbml.bayes",
    "PairHistogram": "cbml.bayes",
    "PairStatistics": "cbml.bayes",
    "ClassBalancedSampler": "cbml.data",
    "datasets": "cbml.data",
    "ImageSet": "cbml.data",
    "evaluate": "cbml.evaluation",
    "Scores": "cbml.evaluation",
    "Gallery": "cbml.gallery",
    "Index": "cbml.index",
    "Matches": "cbml.index",
    "CBMLLoss": "cbml.losses",
    "LinearRatio": "cbml.losses",
    "LOSSES": "cbml.losses",
    "MetricVariance": "cbml.losses",
    "QuadraticRatio": "cbml.losses",
    "BACKBONES": "cbml.models",
    "embed": "cbml.models",
    "Embedder": "cbml.models",
    "Execution": "cbml.models",
    "export_onnx": "cbml.models",
    "from_hub": "cbml.models",
    "Preprocessing": "cbml.models",
    "push_to_hub": "cbml.models",
    "fit": "cbml.training",
}

__version__ = "0.1.0"
__all__ = sorted(_HOME)  # noqa: PLE0605 - one list of names is enough


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cbml' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
