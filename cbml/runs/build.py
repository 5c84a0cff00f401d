"""From a config to the parts of a run: images, model, loss, batches."""

import dataclasses
import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cbml.data import (
    SPLIT_NAMES,
    Batches,
    ImageDataset,
    PackedImages,
    Splits,
    TrainTransform,
    cache_folder,
    image_folders,
    load,
    no_images,
    open_source,
    pack,
    recognize,
    short_side,
    unlabeled_splits,
)
from cbml.errors import BadData, nearest
from cbml.evaluation import score_names
from cbml.losses import build_loss
from cbml.methods import METHODS
from cbml.models import (
    BACKBONES,
    Embedder,
    Execution,
    add_backbone,
    find_backbone,
    resolve_head,
    resolve_levels,
)
from cbml.runs.config import RunConfig
from cbml.runs.folder import model_folder, recorded_config
from cbml.runs.sections import LossConfig, MethodConfig
from cbml.training import Distributed, Method, check_batch_shape, keep_freed_memory
from cbml.training import build_batches as build_training_batches

_SPLITS = {(name,) for name in SPLIT_NAMES}


def load_splits(config: RunConfig) -> Splits:
    """The images of a config with their labels, and the classes that choose the model held out.

    Args:
        config: Names the dataset.
    """
    data = config.data
    chosen_on_test = data.model_selection == "test"
    splits = load(
        data.source,
        data.known_as,
        validation=0.0 if chosen_on_test else data.validation,
        seed=config.training.seed,
        allow_partial=data.allow_partial,
        label_from=data.label_from,
        split=data.split,
        path_column=data.path_column,
        label_column=data.label_column,
    )
    if not len(splits.train):
        raise BadData(f"{data.source}: no images to train on")
    if not chosen_on_test:
        return splits
    held = splits.test if splits.test is not None else splits.query
    if held is None:
        raise BadData(f"{data.source}: model_selection=test: has no test images")
    record = {**splits.record, "chosen_on": "test"}
    return dataclasses.replace(splits, validation=held, record=record)


def training_splits(config: RunConfig) -> Splits:
    """The images as a run of this config sees them: without labels where it must not know them.

    Of a folder without labels every image below it is taken, whatever the folders within it mean,
    unless they are splits: train, test and the like. Test images keep their labels.

    Args:
        config: Names the dataset.
    """
    if config.data.labels == "known" or config.pseudo_labels.study:
        return load_splits(config)
    if recognize(config.data.source) == "folder":
        root = open_source(config.data.source)
        folders = dict(image_folders(root))
        if not folders:
            raise no_images(root)
        if not {below.relative_to(root).parts[:1] for below in folders} <= _SPLITS:
            paths = tuple(path for found in folders.values() for path in found)
            return unlabeled_splits("folder", root, "all images below it", paths)
    splits = load_splits(config.replace(data={"validation": 0.0}))
    return dataclasses.replace(splits, train=ImageDataset(splits.train.paths))


def training_images(run: str | Path) -> ImageDataset | None:
    """The images that a run was trained on; None where that is not known.

    Args:
        run: A run's folder; of a saved model or a backbone nothing is known.
    """
    folder = Path(run)
    if not (folder / "run.json").is_file():
        return None
    try:
        return training_splits(recorded_config(folder)).train
    except (BadData, OSError):  # the data is elsewhere now
        return None


def training_paths(run: str | Path) -> set[str] | None:
    """Absolute paths of the `training_images` of a run.

    Args:
        run: A run's folder; see `training_images`.
    """
    images = training_images(run)
    return None if images is None else {os.path.abspath(path) for path in images.paths}


def known_labels(run: str | Path, labels: Mapping[str, str | None]) -> int | None:
    """How many labels of images that are new to a run it was trained on; None if unknown.

    Args:
        run: A run's folder; see `training_images`.
        labels: Absolute path of an image -> its label.
    """
    images = training_images(run)
    if images is None:
        return None
    seen = {os.path.abspath(path) for path in images.paths}
    return len({labels[path] for path in labels.keys() - seen} & set(images.class_names))


def build_model(config: RunConfig, method: nn.Module | None = None) -> Embedder:
    """The untrained model of a config, on the GPU where there is one.

    Args:
        config: Names backbone, size and weights.
        method: What it will be trained by, and may ask for heads; None for that of the config.
            A method of the user's own must be given: a config alone never imports code.
    """
    chosen, name = config.model, config.method.name
    weights = chosen.weights if chosen.start is None else "none"
    if method is None and name in METHODS:
        method = build_method(config, 2, images=2)  # heads do not depend on the classes
    asked = method if isinstance(method, Method) else Method()
    model = Embedder(
        chosen.backbone,
        dim=chosen.dim,
        pooling=chosen.pooling,
        batch_norm=chosen.batch_norm,
        weights=weights,
        preprocessing=find_backbone(chosen.backbone).preprocessing.with_crop(config.test_crop),
        heads=asked.heads(chosen.dim),
        head=asked.head,
        reranker=asked.reranker,
        seed=config.training.seed,
    )
    if chosen.start is not None:
        _copy_start(model, chosen.start)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _copy_start(model: Embedder, folder: str) -> None:
    start = Embedder.load(model_folder(Path(folder)))
    try:
        model.load_state_dict(start.state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise BadData(f"--start {folder}: another network than this run's: {reason}") from None
    model.provenance = f"start: {folder}, {start.provenance}"


def build_execution(config: RunConfig, model: Embedder) -> Execution:
    """How a config's model is run; on a CPU this process keeps its memory from now on.

    Args:
        config: Names precision and compilation.
        model: On its device.
    """
    device = next(model.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    default = Execution.default(device)
    wanted = config.model.precision
    return Execution(
        channels_last=default.channels_last,
        precision=default.precision if wanted == "default" else wanted,
        compile=config.model.compile,
        fold=default.fold,
    )


def build_run_loss(config: RunConfig, classes: int) -> nn.Module:
    """The loss of a config; misspelled names and options are refused with the nearest known one.

    Args:
        config: Names the loss and its options.
        classes: Number of classes, for losses with a vector for each.
    """
    name: Any = config.loss.name
    if ":" in name:
        name = import_class(name, "loss")
    size, seed, options = config.model.dim, config.training.seed, dict(config.loss.options)
    if config.proxy_weight:
        options["proxy_weight"] = config.proxy_weight
    try:
        return build_loss(name, options, classes=classes, dim=size, seed=seed)
    except (TypeError, ValueError) as error:
        raise BadData(str(error)) from None


def build_method(config: RunConfig, classes: int, *, images: int) -> nn.Module:
    """The method of a config around its loss, or the loss alone where no method is named.

    Args:
        config: Names the method, its options and the loss.
        classes: Number of classes, for losses with a vector for each.
        images: How many there are to train on, for methods with a memory of each.
    """
    name = config.method.name
    loss = build_run_loss(config, classes)
    if name is None:
        if config.method.options:
            option = next(iter(config.method.options))
            raise BadData(f"method.{option}: no method is named; add --method NAME")
        return loss
    if name == "pseudo_labels":
        raise BadData("--method pseudo_labels: is what --labels none does; leave --method out")
    has_loss = takes_loss(name)
    plain = LossConfig(parameters=config.loss.parameters, proxy_weight=config.loss.proxy_weight)
    if not has_loss and config.loss != plain:
        raise BadData(f"--loss {config.loss.name}: {name} has its own loss; leave --loss out")
    if not has_loss and config.proxy_weight:
        raise BadData(f"proxy_weight: {name} has its own loss; leave it out")
    if not has_loss and config.loss.parameters == "from-data":
        raise BadData(f"parameters=from-data: {name} has its own loss; leave it out")
    given = {
        "num_classes": classes,
        "num_images": images,
        "embedding_size": config.model.dim,
        "head_start": config.pseudo_labels.head_start,
        "seed": config.training.seed,
    }
    return _construct(_method_class(name), [loss] if has_loss else [], config.method, given)


def takes_loss(name: str | None) -> bool:
    """Whether the loss of a config is used: by itself, or by the method around it."""
    if name is None:
        return True
    if name in METHODS:
        return METHODS[name].has_loss
    return "loss" in inspect.signature(_method_class(name)).parameters


def _method_class(name: str) -> type:
    found: type = import_class(name, "method") if ":" in name else METHODS[name].load()
    return found


def _construct(
    kind: type, parts: list[nn.Module], chosen: MethodConfig, given: Mapping[str, Any]
) -> nn.Module:
    """A method with the options of a config, and what the images and the model tell filled in."""
    known = inspect.signature(kind).parameters
    options = {name: value for name, value in given.items() if name in known}
    for option, value in chosen.options.items():
        if option not in known:
            hint = nearest(option, known)
            raise BadData(f"method.{option}: {chosen.name} has no such option; {hint}")
        options[option] = value
    try:
        made: nn.Module = kind(*parts, **options)
    except (TypeError, ValueError) as error:
        raise BadData(f"--method {chosen.name}: {error}") from None
    return made


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


def use_backbone(name: str | None) -> None:
    """Import a network of the user's own, so that models with it can be built and loaded.

    Args:
        name: As given on the command line, never as read from a file; names of BACKBONES and of
            timm, and None, ask for nothing.
    """
    if name is None or ":" not in name or name.startswith("timm:") or name in BACKBONES:
        return
    build = _import(name, "backbone", "function")
    if not callable(build):
        raise BadData(f"--backbone {name}: not a function that builds a network")
    try:
        add_backbone(name, build)
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadData(f"--backbone {name}: {' '.join(str(error).split())}") from None


def _import(name: str, option: str, kind: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadData(
            f"--{option} {name}: {error}; write package.module:{kind}, with the package installed "
            "or its folder in PYTHONPATH"
        ) from None


def import_class(name: str, option: str) -> Any:
    """The class that "package.module:Class" names.

    Args:
        name: As given on the command line, never as read from a file.
    """
    found = _import(name, option, "Class")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise BadData(f"--{option} {name}: not a torch.nn.Module class")
    return found


def build_batches(
    config: RunConfig,
    images: ImageDataset,
    distributed: Distributed,
    progress: Callable[[int, int], None] | None = None,
) -> Batches:
    """The batches of this process.

    Args:
        config: Names seed and sizes; those it leaves open are fitted to the dataset.
        images: The training images; without labels each is a class of its own at first.
        distributed: The processes.
        progress: Called with images read and images in all.
    """
    plain = config.method.name is None and config.data.labels == "known"
    # Methods embed training images too, at the size of searches.
    side = short_side(config.model.crop if plain else max(config.model.crop, config.test_crop))
    source = pack(images.paths, cache_folder() / "packed", short_side=side, progress=progress)
    return draw_batches(config, images, distributed, source)


def draw_batches(
    config: RunConfig,
    images: ImageDataset,
    distributed: Distributed,
    source: PackedImages | None = None,
) -> Batches:
    """The batches of this process, from packed images or from the files themselves."""
    crops = config.augmentation
    return build_training_batches(
        images,
        transform=TrainTransform(config.model.crop, (crops.min_area, 1.0), flip=crops.flip),
        distributed=distributed,
        classes_per_batch=config.training.classes_per_batch,
        samples_per_class=config.training.samples_per_class,
        batch_range=None if images.labels is not None else config.pseudo_labels.batch_sizes,
        seed=config.training.seed,
        source=source,
        workers=config.data.workers,
        bad_limit=config.data.bad_limit,
    )
