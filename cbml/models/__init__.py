"""Picture batch -> unit vectors: backbones, weights, the embedder, embedding, saved models."""

from cbml.models.backbones import BACKBONES, Backbone, find_backbone
from cbml.models.embedder import BATCH_NORMS, Embedder
from cbml.models.pooling import POOLINGS
from cbml.models.preprocessing import Preprocessing

__all__ = [
    "BACKBONES",
    "BATCH_NORMS",
    "POOLINGS",
    "Backbone",
    "Embedder",
    "Preprocessing",
    "find_backbone",
]
