"""Constants of the loss and the number of clusters: given, or estimated once and recorded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.bayes import PairStatistics
from cbml.data import ImageDataset, PackedDataset
from cbml.errors import BadData, DamagedFile
from cbml.methods import chain_count, image_features, whitened
from cbml.models import Embedder
from cbml.runs.build import takes_loss
from cbml.runs.config import RunConfig
from cbml.runs.planning import has_pretrained_weights
from cbml.training import Callback, Distributed, embed_dataset, embed_indices, read_record

# Enough for means and spreads of similarities, and a CPU embeds them in minutes.
IMAGES = 4096
SAMPLED_OF_CLASS = 32
# Nearest neighbors are sought among at most so many.
CLUSTERED = 20_000


def with_chosen_parameters(config: RunConfig) -> RunConfig:
    """The config with "given" or "from-data", and the proxies, where its loss leaves them open.

    Estimating is the better start for CBML without a ratio of its own on a pretrained network.
    Similarities of an untrained one tell nothing of the classes.
    """
    config = config.replace(loss={"proxy_weight": config.proxy_weight})
    if config.loss.parameters != "default":
        return config
    own_ratio = any(name.split(".")[0] == "ratio" for name in config.loss.options)
    used = config.data.labels == "known" and takes_loss(config.method.name)
    pretrained = has_pretrained_weights(config) or config.model.start is not None
    estimated = config.loss.name == "cbml" and used and pretrained and not own_ratio
    return config.replace(loss={"parameters": "from-data" if estimated else "given"})


def estimate_options(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], odds: float | None = None
) -> dict[str, Any]:
    """The record of an estimate: the loss's "options" and the statistics they come from."""
    try:
        return PairStatistics.of(embeddings, labels).loss_record(prior_odds=odds)
    except BadData as error:
        # Estimating is what happens when nothing is said, so the way out must be named.
        raise BadData(
            f"the constants of the loss cannot be estimated: {error}; to train with "
            "the defaults: --set parameters=given"
        ) from None


def estimate_parameters(
    config: RunConfig,
    model: Embedder,
    images: ImageDataset,
    distributed: Distributed,
    callback: Callback,
) -> dict[str, Any]:
    """The record of an estimate from at most 4,096 training images, drawn by the run's seed.

    They are embedded at the size of the training crops. Each process gets the same record.
    """
    sample = sample_indices(images.known_labels, config.training.seed)
    read = callback.progress("images read for statistics")
    dataset = PackedDataset.of(images.subset(sample), config.model.crop, read)
    labels = dataset.images.known_labels
    shown = callback.progress("images embedded for statistics")
    trained = model.at_crop(config.model.crop)
    embeddings = embed_dataset(trained, dataset, distributed, shown)
    found = estimate_options(embeddings, labels, _prior_odds(images.class_sizes()))
    return {**found, "images": len(labels), "classes": len(np.unique(labels))}


def _prior_odds(sizes: NDArray[np.int64]) -> float:
    """Θ of classes of these sizes; a sample, of the same number of each, has more."""
    pairs, positive = float(sizes.sum()) ** 2, float((sizes.astype(np.float64) ** 2).sum())
    return (positive - float(sizes.sum())) / max(pairs - positive, 1.0)


def recorded_parameters(folder: Path) -> dict[str, Any]:
    """The estimate that a run was started with."""
    parameters = read_record(folder).get("parameters")
    if parameters is None:
        raise BadData(
            f"{folder}: was not started with parameters=from-data, and cannot change to it"
        )
    if not (isinstance(parameters, dict) and isinstance(parameters.get("options"), dict)):
        raise DamagedFile(f"{folder / 'run.json'}: its parameters are not a record of this program")
    return parameters


def estimate_clusters(
    config: RunConfig,
    model: Embedder,
    dataset: PackedDataset,
    distributed: Distributed,
    callback: Callback,
) -> int:
    """The number of clusters K that the images propose to the start model.

    It is `chain_count` of their whitened features at the size of the training crops, from at most
    20,000 images, drawn by the run's seed, for which it is the share of images that is kept.

    Args:
        dataset: The readable images.
    """
    drawn = np.random.default_rng(config.training.seed).permutation(dataset.indices)
    chosen = np.sort(drawn[:CLUSTERED])
    shown = callback.progress("images embedded to count clusters")

    def embed(network: nn.Module) -> NDArray[np.float32]:
        return embed_indices(network, dataset.packed, chosen, distributed, shown)

    features = image_features(model.at_crop(config.model.crop), embed)

    def count() -> Tensor:
        return torch.tensor([chain_count(whitened(features, config.model.dim))])

    found = distributed.from_main_process(count, torch.zeros(1, dtype=torch.int64))
    clusters = round(int(found) * len(drawn) / len(chosen))
    callback.on_message(
        f"{clusters} clusters: the number of pairs of images that are each other's nearest"
    )
    return clusters


def with_estimate(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """The config with estimated options of the loss; those that it gives itself stay."""
    return config.replace(loss={"options": {**options, **config.loss.options}})


def sample_indices(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """At most 4,096 indices, ascending: up to 32 of a class, as many classes as fit."""
    if len(labels) <= IMAGES:
        return np.arange(len(labels))
    random = np.random.default_rng(seed)
    mixed = random.permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]
    starts = np.flatnonzero(np.diff(labels[by_class], prepend=-1))
    groups = [group[:SAMPLED_OF_CLASS] for group in np.split(by_class, starts[1:])]
    order = random.permutation(len(groups))
    sizes = np.cumsum([len(groups[index]) for index in order])
    fitting = order[: max(2, int((sizes <= IMAGES).sum()))]
    return np.sort(np.concatenate([groups[index] for index in fitting]))
