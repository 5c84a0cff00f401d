"""What `run` trains: model, loss, batches and validation, with labels or without."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from cbml.data import Batches, ClassBalancedSampler, ImageDataset, PackedDataset, Splits
from cbml.errors import BadData
from cbml.evaluation import agreement, evaluate
from cbml.methods import Labels, PseudoLabels, Study, cluster_count
from cbml.models import Embedder
from cbml.runs.build import (
    build_batches,
    build_method,
    build_model,
    build_run_loss,
    training_splits,
)
from cbml.runs.config import RunConfig
from cbml.runs.loss_parameters import (
    estimate_options,
    estimate_parameters,
    recorded_parameters,
    with_estimate,
)
from cbml.training import CLASSES_PER_BATCH, SAMPLES_PER_CLASS, Callback, Distributed, embed_dataset


@dataclass(frozen=True)
class Parts:
    """The parts of a run; `config` has the batch sizes that were left open filled in."""

    config: RunConfig
    splits: Splits
    model: Embedder
    method: nn.Module
    batches: Batches
    metadata: Mapping[str, Any] = field(default_factory=dict)
    held_out: PackedDataset | None = None
    study: Study | None = None


def labeled_parts(
    config: RunConfig, resumed: Path | None, distributed: Distributed, callback: Callback
) -> Parts:
    """The parts of a run over images with labels; `resumed` is the folder of an earlier part."""
    splits = training_splits(config)
    _check_classes(config, splits.train)
    batches = build_batches(config, splits.train, distributed)
    config = _with_batch_sizes(config, batches, callback)
    held_out = _held_out(splits, config.model.crop)
    for note in splits.record.get("notes", ()):
        callback.on_message(note)
    classes, parameters = len(splits.train.class_names), None
    method = build_method(config, classes, images=len(splits.train))
    model = build_model(config, method)
    if config.loss.parameters == "from-data":
        if resumed is not None:
            parameters = recorded_parameters(resumed)
        else:
            parameters = estimate_parameters(config, model, splits.train, distributed)
        chosen = with_estimate(config, parameters["options"])
        method = build_method(chosen, classes, images=len(splits.train))
    return Parts(
        config, splits, model, method, batches, {"parameters": parameters}, held_out=held_out
    )


def _check_classes(config: RunConfig, images: ImageDataset) -> None:
    classes = len(images.class_names)
    if images.labels is None:
        problem = "images without class folders or labels"
    elif classes < 2:
        problem = f"{classes} class to train on, and two are the least"
    else:
        return
    raise BadData(
        f"{config.data.source}: {problem}; put each class into a folder of its own, or learn "
        "without labels: --labels none"
    )


def _with_batch_sizes(config: RunConfig, batches: Batches, callback: Callback) -> RunConfig:
    """The config with the sizes of its batches, which it may leave open."""
    sampler = batches.sampler
    assert isinstance(sampler, ClassBalancedSampler)
    classes, samples = sampler.classes_per_batch, sampler.samples_per_class
    usual_classes = config.training.classes_per_batch or CLASSES_PER_BATCH
    usual_samples = config.training.samples_per_class or SAMPLES_PER_CLASS
    if (classes, samples) != (usual_classes, usual_samples):
        callback.on_message(
            f"a batch has {classes} classes with {samples} images each, to fit the dataset"
        )
    sizes = {"classes_per_batch": classes, "samples_per_class": samples}
    return config.replace(training=sizes)


def _held_out(splits: Splits, crop: int) -> PackedDataset | None:
    """The readable images that choose the model; None, and a note, where no two share a class."""
    if not len(splits.validation):
        return None
    dataset = PackedDataset.of(splits.validation, crop)
    if (dataset.images.class_sizes() > 1).any():
        return dataset
    splits.record.setdefault("notes", []).append(
        "no class to validate with has two readable images: the last model is kept"
    )
    return None


def unlabeled_parts(config: RunConfig, distributed: Distributed) -> Parts:
    """The parts of a run that learns from clusters, or from every image as its own class.

    There is nothing to choose a model by, so the last one is kept unless the method can judge it.
    """
    splits = training_splits(config)
    images = ImageDataset(splits.train.paths)
    dataset = PackedDataset.of(images, config.model.crop)
    # With labels=each a label is an image's index, and unreadable images have one too.
    each = config.data.labels == "each"
    wanted = config.pseudo_labels.clusters
    clusters = len(images) if each else cluster_count(len(dataset.images), wanted)
    study = _study(splits, dataset, config, distributed) if config.pseudo_labels.study else None
    readable = [*dataset.indices]
    final = None if study is None else lambda model, labels: study(model, labels[readable])
    if config.method.name is None:
        method: nn.Module = _pseudo_labels(config, clusters, study)
    else:
        method = build_method(config, clusters, images=len(images))
    return Parts(
        config,
        splits,
        build_model(config),
        method,
        build_batches(config, images, distributed),
        {"clusters": clusters},
        study=final,
    )


def _pseudo_labels(config: RunConfig, clusters: int, study: Study | None) -> PseudoLabels:
    chosen = config.pseudo_labels
    if config.data.labels == "each":
        loss = build_run_loss(config, clusters)
        return PseudoLabels(loss, clusters=None, head_start=chosen.head_start)

    def estimated(options: Mapping[str, Any]) -> nn.Module:
        return build_run_loss(with_estimate(config, options), clusters)

    given = config.loss.parameters == "given"
    return PseudoLabels(
        build_run_loss(config, clusters) if given else estimated,
        clusters=clusters,
        every=chosen.refresh_epochs,
        cluster_by=chosen.cluster_by,
        head_start=chosen.head_start,
        estimate=None if given else estimate_options,
        study=study,
        seed=config.training.seed,
        collapse=config.training.collapse,
    )


def _study(
    splits: Splits, dataset: PackedDataset, config: RunConfig, distributed: Distributed
) -> Study:
    """Scores on classes held out of the training, and how well clusters meet true labels."""
    crop = config.model.crop
    held_out = PackedDataset.of(splits.validation, crop) if len(splits.validation) else None
    truth = splits.train.known_labels[[*dataset.indices]]

    def study(model: Embedder, labels: Labels) -> Mapping[str, float]:
        scores = {"nmi": agreement(truth, labels)[0]}
        if held_out is not None:
            embeddings = embed_dataset(model, held_out, distributed)
            labels = held_out.images.known_labels
            found = evaluate(embeddings, labels, clustering=False).metrics
            scores |= {f"held-out {name}": found[name] for name in ("recall@1", "map@r")}
        return scores

    return study
