"""What cannot be trained, refused in one line before an image is read."""

from torch import nn

from cbml.data import ImageDataset
from cbml.errors import BadData
from cbml.evaluation import score_names
from cbml.models import Embedder, resolve_head, resolve_levels
from cbml.runs.build import build_method, draw_batches, use_backbone
from cbml.runs.config import RunConfig
from cbml.training import (
    Distributed,
    Method,
    check_batch_shape,
    check_chunks,
    check_training_set,
)


def check_options(config: RunConfig) -> None:
    """Refuse options that cannot be meant, before any image is read.

    Args:
        config: Names the loss and its options.
    """
    if config.data.labels != "none" and config.pseudo_labels.clusters is not None:
        raise BadData("clusters: only with labels=none")
    use_backbone(config.model.backbone)
    method = build_method(config, 2, images=2)
    if isinstance(method, Method):
        resolve_levels(method.heads(config.model.dim), config.model.backbone)
        resolve_head(method.head, config.model.backbone, config.model.dim)
    known = config.data.labels == "known"
    classes = config.training.classes_per_batch if known else None
    check_batch_shape(method, classes, config.training.samples_per_class)
    scores = [*score_names(clustering=False), *getattr(method, "judged_by", ())]
    if known and config.training.choose_by not in (None, *scores):
        raise BadData(
            f"choose_by={config.training.choose_by}: no such score; use one of {', '.join(scores)}"
        )


def check_trainable(
    config: RunConfig, images: ImageDataset, method: nn.Module, distributed: Distributed
) -> None:
    """Refuse a training set that a method cannot learn from, before an image is read.

    Args:
        config: Names seed and sizes; those it leaves open are fitted to the dataset.
        images: The training images.
        method: The method or loss of the config.
        distributed: The processes, which must be able to share a batch.
    """
    check_training_set(method, draw_batches(config, images, distributed))


def check_model(config: RunConfig, model: Embedder, method: nn.Module) -> None:
    """Refuse a network that a method, or chunks, cannot be trained with.

    Args:
        config: Names the size of chunks, if any.
        model: As built for the method.
        method: The method or loss of the config.
    """
    if isinstance(method, Method):
        method.attach(model)
    if config.training.chunk_size:
        check_chunks(model.train())
