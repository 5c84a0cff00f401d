"""What `run` trains, with labels or without: model, loss and its constants, batches, validation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from cbml.data import Batches, ImageDataset, PackedDataset, Splits
from cbml.errors import BadData
from cbml.evaluation import agreement, evaluate
from cbml.methods import METHODS, Labels, PseudoLabels, Study, check_clusters
from cbml.models import Embedder
from cbml.program import command
from cbml.runs.build import (
    build_batches,
    build_execution,
    build_method,
    build_model,
    build_run_loss,
    draw_batches,
    training_images,
    training_splits,
)
from cbml.runs.config import RunConfig
from cbml.runs.defaults import more_classes
from cbml.runs.parameters import (
    estimate_clusters,
    estimate_options,
    estimate_parameters,
    recorded_parameters,
    with_estimate,
)
from cbml.runs.planning import Planner, plan_run, with_crop, workload
from cbml.training import (
    CLASSES_PER_BATCH,
    SAMPLES_PER_CLASS,
    Callback,
    Distributed,
    Method,
    check_chunks,
    check_training_set,
    embed_dataset,
    fitted_sizes,
    read_record,
)

# With fewer held-out classes the choice of a model is left to the score that sees most of it.
_TELLING_CLASSES = 10


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


@dataclass(frozen=True)
class Start:
    """How a run starts: from the folder of an earlier part or not, with which processes.

    Args:
        resumed: The folder of an earlier part of the run; None where there is none.
        test: Whether the test images will be scored, which takes time.
    """

    resumed: Path | None
    distributed: Distributed
    callback: Callback
    test: bool = False


def labeled_parts(config: RunConfig, start: Start) -> Parts:
    """The parts of a run over images with labels; `start.resumed` is an earlier part of it."""
    callback, distributed = start.callback, start.distributed
    splits = training_splits(config)
    _check_classes(config, splits.train)
    _check_test(config, splits, start)
    _note_known_to_start(config.model.start, splits)
    for note in splits.record.get("notes", ()):
        callback.on_message(note)
    config = _with_batch_sizes(config, splits.train, start)
    classes, parameters = len(splits.train.class_names), None
    method = build_method(config, classes, images=len(splits.train))
    check_training_set(method, draw_batches(config, splits.train, distributed))
    model = build_model(with_crop(config), method)
    _check_model(config, model, method)
    sizes = config.training
    batch = (sizes.classes_per_batch or 0) * (sizes.samples_per_class or 0)
    config, plan = _planned(config, model, method, splits, batch, start)
    batches = build_batches(config, splits.train, distributed, callback.progress("images read"))
    held_out, config = _held_out(config, splits, callback)
    if config.loss.parameters == "from-data":
        if start.resumed is not None:
            parameters = recorded_parameters(start.resumed)
        else:
            parameters = estimate_parameters(config, model, splits.train, distributed, callback)
        chosen = with_estimate(config, parameters["options"])
        method = build_method(chosen, classes, images=len(splits.train))
    metadata = {"parameters": parameters, **plan}
    return Parts(config, splits, model, method, batches, metadata, held_out=held_out)


def _planned(
    config: RunConfig,
    model: Embedder,
    method: nn.Module,
    splits: Splits,
    batch: int,
    start: Start,
) -> tuple[RunConfig, dict[str, Any]]:
    """The config with a plan, and its record; a resumed run has both already."""
    if start.resumed is not None:
        return config, {}
    work = workload(config, splits, batch, test=start.test)
    execution = build_execution(config, model)
    planner = Planner(config, model, method, execution, work, start.distributed.size)
    config, plan = plan_run(planner, start.distributed, start.callback)
    model.preprocessing = model.preprocessing.with_crop(config.test_crop)
    return config, {"plan": plan}


def _check_model(config: RunConfig, model: Embedder, method: nn.Module) -> None:
    """Refuse a network that a method, or chunks, cannot be trained with."""
    if isinstance(method, Method):
        method.attach(model)
    if config.training.chunk_size:
        check_chunks(model.train())


def _check_classes(config: RunConfig, images: ImageDataset) -> None:
    classes = len(images.class_names)
    if images.labels is None:
        problem = "images without class folders or labels"
    elif classes < 2:
        problem = f"{classes} class to train on; at least two are needed"
    else:
        return
    raise BadData(
        f"{config.data.source}: {problem}; put each class into its own folder, or learn "
        "without labels: --labels none"
    )


def _check_test(config: RunConfig, splits: Splits, start: Start) -> None:
    """Refuse a test that has nothing to score now, not after the training."""
    if start.test and not any(map(len, (splits.test or (), splits.query or ()))):
        raise BadData(
            f"{config.data.source}: has no test images with labels; leave out --test, or let "
            "--split classes keep classes for it"
        )


def _with_batch_sizes(config: RunConfig, images: ImageDataset, start: Start) -> RunConfig:
    """The config with the sizes of its batches, which it may leave open."""
    chosen = config.training
    classes, samples = fitted_sizes(
        images.class_sizes(),
        processes=start.distributed.size,
        classes=chosen.classes_per_batch,
        images=chosen.samples_per_class,
    )
    usual_classes = chosen.classes_per_batch or CLASSES_PER_BATCH
    usual_samples = chosen.samples_per_class or SAMPLES_PER_CLASS
    if (classes, samples) != (usual_classes, usual_samples):
        start.callback.on_message(
            f"a batch has {classes} classes with {samples} images each, to fit the dataset"
        )
    return config.replace(training={"classes_per_batch": classes, "samples_per_class": samples})


def _held_out(
    config: RunConfig, splits: Splits, callback: Callback
) -> tuple[PackedDataset | None, RunConfig]:
    """The readable images that choose the model, and the config with the score they choose by.

    None, and a note, where no two share a class.
    """
    chosen: PackedDataset | None = None
    score, note = "recall@1", ""
    if len(splits.validation):
        chosen = PackedDataset.of(
            splits.validation, config.test_crop, callback.progress("held-out images read")
        )
        classes = int((chosen.images.class_sizes() > 1).sum())
        if not classes:
            chosen = None
            note = "no class to validate with has two readable images: the last model is kept"
        elif classes < _TELLING_CLASSES:
            score = "map@r"
            note = (
                f"only {classes} held-out classes, which hardly tell two models apart: the model "
                "is chosen by MAP@R, and small differences are noise; "
                f"{more_classes(config.data.validation)}"
            )
    if note:
        splits.record.setdefault("notes", []).append(note)
        callback.on_message(note)
    return chosen, config.replace(training={"choose_by": config.training.choose_by or score})


def _note_known_to_start(start: str | None, splits: Splits) -> None:
    """Record where classes to be scored are named as some that the start was trained on."""
    known = None if start is None else training_images(start)
    scored = (splits.query or splits.test or splits.validation).class_names
    if shared := len(set(scored) & set(known.class_names)) if known else 0:
        splits.record.update(shared_classes=shared, scores_for="classes known to the start")
        splits.record["notes"].append(
            f"{shared:,} of {len(scored):,} classes to be scored have names of classes that "
            f"{start} was trained on: scores are not for unseen classes"
        )


def unlabeled_parts(config: RunConfig, start: Start) -> Parts:
    """The parts of a run that learns from clusters, or from every image as its own class.

    No label chooses the model: where the method cannot judge it, the last one is kept.
    """
    distributed, read = start.distributed, start.callback.progress("images read")
    splits = training_splits(config)
    _check_test(config, splits, start)
    images = ImageDataset(splits.train.paths)
    _check_unlabeled(config, images, distributed)
    # A model has heads, and so a size, before it is known how many clusters there will be.
    model = build_model(with_crop(config))
    _check_model(config, model, nn.Identity())
    sizes = config.pseudo_labels.batch_sizes
    config, plan = _planned(config, model, nn.Identity(), splits, sizes[1], start)
    config = config.replace(training={"choose_by": config.training.choose_by or "view_agreement"})
    dataset = PackedDataset.of(images, config.test_crop, read)
    if len(dataset.images) < 2:
        few = f"{config.data.source}: {len(dataset.images)} of {len(images)} images can be read"
        see = command("data", "check", config.data.source)
        raise BadData(f"{few}; at least two are needed; see what is wrong:  {see}")
    # With labels=each a label is an image's index, and unreadable images have one too.
    if config.data.labels == "each":
        clusters = len(images)
    elif config.pseudo_labels.clusters is not None:
        clusters = check_clusters(config.pseudo_labels.clusters, len(dataset.images))
    elif start.resumed is not None:
        clusters = int(read_record(start.resumed)["clusters"])
    else:
        clusters = estimate_clusters(config, model, dataset, distributed, start.callback)
    study = _study(splits, dataset, config, distributed) if config.pseudo_labels.study else None
    readable = [*dataset.indices]
    final = None if study is None else lambda model, labels: study(model, labels[readable])
    if config.method.name is None:
        method: nn.Module = _pseudo_labels(config, clusters, study)
    else:
        method = build_method(config, clusters, images=len(images))
        if config.method.name in METHODS:
            start.callback.on_message(f"without labels: {METHODS[config.method.name].title}")
    batches = build_batches(config, images, distributed)
    metadata = {"clusters": clusters, **plan}
    return Parts(config, splits, model, method, batches, metadata, study=final)


def _check_unlabeled(config: RunConfig, images: ImageDataset, distributed: Distributed) -> None:
    """Refuse what cannot be learned from so many images, before any of them is read."""
    if len(images) < 2:
        raise BadData(f"{config.data.source}: {len(images)} image; at least two are needed")
    clusters = len(images)
    if config.data.labels == "none":
        clusters = check_clusters(config.pseudo_labels.clusters or 2, clusters)
    method = build_method(config, clusters, images=len(images))
    check_training_set(method, draw_batches(config, images, distributed))


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
    crop = config.test_crop
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
