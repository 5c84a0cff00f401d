"""Queries and what two methods find for them: green frames are right, red ones wrong."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.experiments.records import Record
from cbml.experiments.sources import Sources
from cbml.experiments.units import Unit, run_name
from cbml.models import Embedder
from cbml.training.assembly import Shelf, load_splits

__all__ = ["chosen_queries", "draw_examples", "nearest"]

_QUERIES, _FOUND = 6, 5
_RIGHT, _WRONG = "#1a9850", "#d73027"

Rows = NDArray[np.float32]
Places = NDArray[np.int64]


def draw_examples(
    pyplot: Any, units: Sequence[Unit], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """A line for each query: the query, what the first method finds, what the second finds.

    Args:
        pyplot: of matplotlib.
        units: two rows; the first seed of each is shown.
        records: not used.
        out: folder of the runs.
        sources: places of pictures and weights.
    """
    del records
    recipe = sources.local(units[0].recipe)
    splits = load_splits(recipe)
    test = splits.test if splits.test is not None else splits.gallery
    assert test is not None
    shelf = Shelf.of(test, recipe.crop)
    names = list(dict.fromkeys(unit.row for unit in units))[:2]
    found = []
    for name in names:
        unit = next(unit for unit in units if unit.row == name)
        model = Embedder.load(out / "runs" / run_name(unit) / "model").eval()
        found.append(nearest(shelf.embedded(model), _FOUND))
    return _drawn(pyplot, shelf, names, found)


def _drawn(pyplot: Any, shelf: Shelf, names: Sequence[str], found: Sequence[Places]) -> Any:
    labels = shelf.images.known_labels
    queries = chosen_queries(found[0], found[1], labels, _QUERIES)
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
        _show(line[0], shelf, query, None)
        for start, places in zip((2, 3 + _FOUND), found, strict=True):
            for offset, place in enumerate(places[query].tolist()):
                _show(line[start + offset], shelf, place, bool(labels[place] == labels[query]))
    panels[0][0].set_title("query", fontsize=9)
    for start, name in zip((2, 3 + _FOUND), names, strict=True):
        panels[0][start].set_title(name, fontsize=9, loc="left")
    return figure


def nearest(rows: Rows, count: int) -> Places:
    """The most similar other rows of each row, (N, count).

    Args:
        rows: unit vectors. (N, D)
        count: how many.
    """
    parts = []
    for start in range(0, len(rows), 1024):
        similarity = rows[start : start + 1024] @ rows.T
        here = np.arange(len(similarity))
        similarity[here, start + here] = -np.inf
        parts.append(np.argsort(-similarity, axis=1, kind="stable")[:, :count])
    return np.concatenate(parts)


def chosen_queries(first: Places, second: Places, labels: Places, count: int) -> list[int]:
    """Queries of different classes on which two methods disagree, one way and the other in turn.

    Args:
        first: what the first method finds. (N, K)
        second: what the second finds. (N, K)
        labels: of all pictures. (N,)
        count: at most so many.
    """
    hits = [(labels[places] == labels[:, None]).sum(axis=1) for places in (first, second)]
    lead = hits[1] - hits[0]
    orders = [np.argsort(-lead, kind="stable"), np.argsort(lead, kind="stable")]
    chosen: list[int] = []
    for pair in np.stack(orders, axis=1).tolist():
        for query in pair:
            if len(chosen) < count and labels[query] not in labels[chosen]:
                chosen.append(query)
    return chosen


def _show(panel: Any, shelf: Shelf, place: int, right: bool | None) -> None:
    pixels = shelf.packed.sized(shelf.numbers[place], shelf.packed.short_side)
    panel.imshow(pixels.permute(1, 2, 0).numpy())
    panel.axis("on")
    panel.grid(visible=False)
    panel.set_xticks([])
    panel.set_yticks([])
    colour = "#888888" if right is None else _RIGHT if right else _WRONG
    for spine in panel.spines.values():
        spine.set(visible=True, color=colour, linewidth=1.0 if right is None else 3.0)
