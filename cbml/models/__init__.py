"""Picture batch -> unit vectors: backbones, weights, the embedder, embedding, saved models."""

from cbml.models.backbones import BACKBONES, Backbone, find_backbone
from cbml.models.embedder import BATCH_NORMS, Embedder
from cbml.models.embedding import embed, embed_across
from cbml.models.execution import Execution
from cbml.models.export import Exported, export_onnx
from cbml.models.hub import from_hub, push_to_hub
from cbml.models.pooling import POOLINGS
from cbml.models.preprocessing import Preprocessing

__all__ = [
    "BACKBONES",
    "BATCH_NORMS",
    "POOLINGS",
    "Backbone",
    "Embedder",
    "Execution",
    "Exported",
    "Preprocessing",
    "embed",
    "embed_across",
    "export_onnx",
    "find_backbone",
    "from_hub",
    "push_to_hub",
]
