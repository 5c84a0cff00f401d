"""Figures that need the trained models: similarities of pairs, and what two methods find."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.bayes import PairHistogram
from cbml.data import ImageDataset, PackedDataset
from cbml.experiments.jobs import Job, Record, run_name
from cbml.experiments.sources import Sources
from cbml.models import Embedder
from cbml.runs import build_model, load_splits
from cbml.training import embed_dataset

_POSITIVE, _NEGATIVE = "#0072b2", "#d55e00"
_BINS = (100, 200, 400)  # of all similarities; more where they crowd
_CURVE = 40  # steps, below which a curve has corners
_FEWEST = 30  # pairs of each kind in a step, below which their ratio is noise
_IMAGES = 3000
_QUERIES, _FOUND = 6, 5
_RELEVANT, _IRRELEVANT = "#1a9850", "#d73027"

Vectors = NDArray[np.float32]
Indices = NDArray[np.int64]


def draw_similarity(
    pyplot: Any, jobs: Sequence[Job], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """A line of panels for each model, the one before training first.

    Args:
        jobs: The trained models; one seed of each is shown.
    """
    del records
    first = {job.row: job for job in reversed(jobs)}
    config = sources.local(jobs[0].config)
    splits = load_splits(config)
    test = splits.test if splits.test is not None else splits.query
    assert test is not None
    models: dict[str, Embedder] = {"before training": build_model(config).eval()}
    for name in dict.fromkeys(job.row for job in jobs):
        models[name] = Embedder.load(out / "runs" / run_name(first[name]) / "model").eval()
    sets = {"training classes": _some(splits.train), "unseen classes": _some(test)}
    size = (12, 2.3 * len(models))
    figure, panels = pyplot.subplots(len(models), 4, figsize=size, squeeze=False)
    for line, (name, model) in zip(panels, models.items(), strict=True):
        for place, (which, images) in enumerate(sets.items()):
            dataset = PackedDataset.of(images, config.model.crop)
            pairs = PairHistogram.of(embed_dataset(model, dataset), dataset.images.known_labels)
            _draw(line[place], line[place + 2], _smooth(pairs))
            line[place].set_title(f"{name}: {which}", fontsize=9)
            line[place + 2].set_title(f"ratio, {which}", fontsize=9)
    panels[0][0].legend(loc="upper right", fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("similarity")
    return figure


def _smooth(pairs: PairHistogram) -> PairHistogram:
    found = [pairs.coarser(bins) for bins in _BINS]
    return next((one for one in found if _used(one).sum() >= _CURVE), found[-1])


def _used(pairs: PairHistogram) -> NDArray[np.bool_]:
    used: NDArray[np.bool_] = (pairs.positive + pairs.negative) > 0
    return used


def _draw(shares: Any, ratio: Any, pairs: PairHistogram) -> None:
    densities = [counts / max(counts.sum(), 1) for counts in (pairs.positive, pairs.negative)]
    kinds = ((densities[0], _POSITIVE, "same class"), (densities[1], _NEGATIVE, "different"))
    for density, color, label in kinds:
        shares.fill_between(pairs.centers, density, color=color, alpha=0.35, label=label)
    seen = (pairs.positive >= _FEWEST) & (pairs.negative >= _FEWEST)
    if seen.any():
        logs = np.log(densities[0][seen] / densities[1][seen])
        ratio.plot(pairs.centers[seen], logs, color="#333333", marker=".", markersize=3)
    ratio.axhline(0.0, color="#999999", linewidth=0.8)
    ratio.set_ylabel("log Φ_N")
    used = _used(pairs)
    if used.any():
        low, high = pairs.centers[used][0] - 0.05, 1.0
        for panel in (shares, ratio):
            panel.set_xlim(low, high)


def _some(images: ImageDataset) -> ImageDataset:
    """The first classes, as many as fit: enough pairs for smooth curves."""
    sizes = np.cumsum(images.class_sizes())
    count = max(2, int((sizes <= _IMAGES).sum()))
    return images.of_classes(np.arange(min(count, len(images.class_names))))


def draw_examples(
    pyplot: Any, jobs: Sequence[Job], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """A line for each query: the query, what the first method finds, what the second finds.

    Args:
        jobs: Two rows; the first seed of each is shown.
    """
    del records
    config = sources.local(jobs[0].config)
    splits = load_splits(config)
    test = splits.test if splits.test is not None else splits.gallery
    assert test is not None
    dataset = PackedDataset.of(test, config.model.crop)
    names = list(dict.fromkeys(job.row for job in jobs))[:2]
    found = []
    for name in names:
        job = next(job for job in jobs if job.row == name)
        model = Embedder.load(out / "runs" / run_name(job) / "model").eval()
        found.append(nearest(embed_dataset(model, dataset), _FOUND))
    return _drawn(pyplot, dataset, names, found)


def _drawn(
    pyplot: Any, dataset: PackedDataset, names: Sequence[str], found: Sequence[Indices]
) -> Any:
    labels = dataset.images.known_labels
    queries = choose_queries(found[0], found[1], labels, _QUERIES)
    widths = [1.0, 0.25, *[1.0] * _FOUND, 0.25, *[1.0] * _FOUND]
    figure, panels = pyplot.subplots(
        len(queries),
        len(widths),
        figsize=(1.0 * (2 * _FOUND + 2), 1.12 * len(queries) + 0.6),
        squeeze=False,
        gridspec_kw={"width_ratios": widths},
    )
    for panel in panels.ravel():
        panel.axis("off")
    for line, query in zip(panels, queries, strict=True):
        _show(line[0], dataset, query, None)
        for start, indices in zip((2, 3 + _FOUND), found, strict=True):
            for offset, index in enumerate(indices[query].tolist()):
                relevant = bool(labels[index] == labels[query])
                _show(line[start + offset], dataset, index, relevant)
    panels[0][0].set_title("query", fontsize=9)
    for start, name in zip((2, 3 + _FOUND), names, strict=True):
        panels[0][start].set_title(name, fontsize=9, loc="left")
    return figure


def nearest(vectors: Vectors, count: int) -> Indices:
    """The nearest other vectors of each vector, (N, count).

    Args:
        vectors: Unit vectors. (N, D)
    """
    parts = []
    for start in range(0, len(vectors), 1024):
        similarity = vectors[start : start + 1024] @ vectors.T
        here = np.arange(len(similarity))
        similarity[here, start + here] = -np.inf
        parts.append(np.argsort(-similarity, axis=1, kind="stable")[:, :count])
    return np.concatenate(parts)


def choose_queries(first: Indices, second: Indices, labels: Indices, count: int) -> list[int]:
    """Queries of different classes on which two methods disagree, one way and the other in turn.

    Args:
        first: What the first method finds. (N, K)
        second: What the second finds. (N, K)
        labels: Labels of all images. (N,)
    """
    hits = [(labels[indices] == labels[:, None]).sum(axis=1) for indices in (first, second)]
    lead = hits[1] - hits[0]
    orders = [np.argsort(-lead, kind="stable"), np.argsort(lead, kind="stable")]
    chosen: list[int] = []
    for pair in np.stack(orders, axis=1).tolist():
        for query in pair:
            if len(chosen) < count and labels[query] not in labels[chosen]:
                chosen.append(query)
    return chosen


def _show(panel: Any, dataset: PackedDataset, index: int, relevant: bool | None) -> None:
    pixels = dataset.packed.sized(dataset.indices[index], dataset.packed.short_side)
    panel.imshow(pixels.permute(1, 2, 0).numpy())
    panel.axis("on")
    panel.grid(visible=False)
    panel.set_xticks([])
    panel.set_yticks([])
    color = "#888888" if relevant is None else _RELEVANT if relevant else _IRRELEVANT
    for spine in panel.spines.values():
        spine.set(visible=True, color=color, linewidth=1.0 if relevant is None else 3.0)
