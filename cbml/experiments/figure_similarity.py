"""Distributions of similarities and ratio functions, of training and of unseen classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.bayes.histograms import PairHistogram
from cbml.data import ImageSet
from cbml.experiments.records import Record
from cbml.experiments.sources import Sources
from cbml.experiments.units import Unit, run_name
from cbml.models import Embedder
from cbml.training.assembly import Shelf, build_model, load_splits

__all__ = ["draw_similarity"]

_POSITIVE, _NEGATIVE = "#0072b2", "#d55e00"
_BINS = (100, 200, 400)  # of all similarities; more where they crowd
_CURVE = 40  # steps, below which a curve has corners
_FEWEST = 30  # pairs of each kind in a step, below which their ratio is noise
_PICTURES = 3000


def draw_similarity(
    pyplot: Any, units: Sequence[Unit], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """A line of panels for each model, the one before training first.

    Args:
        pyplot: of matplotlib.
        units: the trained models; one seed of each is shown.
        records: not used.
        out: folder of the runs.
        sources: places of pictures and weights.
    """
    del records
    first = {unit.row: unit for unit in reversed(units)}
    recipe = sources.local(units[0].recipe)
    splits = load_splits(recipe)
    test = splits.test if splits.test is not None else splits.query
    assert test is not None
    models: dict[str, Embedder] = {"before training": build_model(recipe).eval()}
    for name in dict.fromkeys(unit.row for unit in units):
        models[name] = Embedder.load(out / "runs" / run_name(first[name]) / "model").eval()
    sets = {"training classes": _some(splits.train), "unseen classes": _some(test)}
    size = (12, 2.3 * len(models))
    figure, panels = pyplot.subplots(len(models), 4, figsize=size, squeeze=False)
    for line, (name, model) in zip(panels, models.items(), strict=True):
        for place, (which, images) in enumerate(sets.items()):
            shelf = Shelf.of(images, recipe.crop)
            pairs = PairHistogram.of(shelf.embedded(model), shelf.images.known_labels)
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
    for density, colour, label in kinds:
        shares.fill_between(pairs.centers, density, color=colour, alpha=0.35, label=label)
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


def _some(images: ImageSet) -> ImageSet:
    """The first classes, as many as fit: enough pairs for smooth curves."""
    sizes = np.cumsum(images.class_sizes())
    count = max(2, int((sizes <= _PICTURES).sum()))
    return images.of_classes(np.arange(min(count, len(images.class_names))))
