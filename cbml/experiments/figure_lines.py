"""Figures from records alone: the gap between seen and unseen classes, terms of the loss, γ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbml.experiments.figure_rows import PSEUDO_MARK
from cbml.experiments.records import Record
from cbml.experiments.sources import Sources
from cbml.experiments.statistics import estimate
from cbml.experiments.units import Unit

__all__ = ["draw_gamma", "draw_gap", "draw_terms"]

_SEEN, _UNSEEN = "#9ecae1", "#08519c"
_TERMS = (("positive", "L_P"), ("negative", "L_N"), ("variance", "L_2"), ("loss", "L"))


def draw_gap(
    pyplot: Any, units: Sequence[Unit], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """Two panels of bars, with and without labels: a pair of bars for each method.

    Args:
        pyplot: of matplotlib.
        units: the order of the methods.
        records: with scores on training and test classes.
        out: not used.
        sources: not used.
    """
    del out, sources
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    names = list(dict.fromkeys(unit.row for unit in units))
    for panel, pseudo in zip(panels, (False, True), strict=True):
        shown = [name for name in names if (PSEUDO_MARK in name) == pseudo]
        for offset, split, colour in ((-0.2, "train", _SEEN), (0.2, "test", _UNSEEN)):
            found = {
                place + offset: estimate(values)
                for place, name in enumerate(shown)
                if (values := _recalls(records, name, split))
            }
            if found:
                bars = panel.bar(
                    list(found),
                    [one.mean for one in found.values()],
                    0.38,
                    yerr=[one.half_width or 0.0 for one in found.values()],
                    color=colour,
                    label={"train": "training classes", "test": "unseen classes"}[split],
                )
                panel.bar_label(bars, fmt="%.1f", fontsize=8)
        panel.set_xticks(range(len(shown)), [name.split(PSEUDO_MARK)[0] for name in shown])
        panel.set_title("with pseudo-labels" if pseudo else "with labels", fontsize=10)
        panel.grid(axis="x", visible=False)
    panels[0].set_ylabel("Recall@1, %")
    panels[0].set_ylim(0, 112)
    drawn = [panel for panel in panels if panel.containers]
    drawn[-1].legend(loc="upper right", ncols=2)
    return figure


def draw_terms(
    pyplot: Any, units: Sequence[Unit], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """A row of panels for each row: L_P, L_N, L_2 and L over steps.

    Args:
        pyplot: of matplotlib.
        units: the order of the rows.
        records: with terms.
        out: not used.
        sources: not used.
    """
    del out, sources
    names = list(dict.fromkeys(unit.row for unit in units))
    size = (11, 2.4 * len(names))
    figure, panels = pyplot.subplots(
        len(names), 4, figsize=size, squeeze=False, sharex=True, sharey="col"
    )
    for line, name in zip(panels, names, strict=True):
        for panel, (term, symbol) in zip(line, _TERMS, strict=True):
            for record in (record for record in records if record["row"] == name):
                terms = record["terms"]
                if term in terms:
                    panel.plot(terms["step"], terms[term], color=_UNSEEN, linewidth=1.2)
            panel.set_title(f"{name}: {symbol}", fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel("step")
    return figure


def draw_gamma(
    pyplot: Any, units: Sequence[Unit], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """A curve for each backbone.

    Args:
        pyplot: of matplotlib.
        units: not used.
        records: with a `target_mix` among their settings.
        out: not used.
        sources: not used.
    """
    del units, out, sources
    curves: dict[str, dict[float, list[float]]] = {}
    for record in records:
        mix = float(record["settings"]["loss_options"]["target_mix"])
        curve = curves.setdefault(record["settings"]["backbone"], {})
        curve.setdefault(mix, []).append(100 * record["scores"]["test"]["recall@1"])
    figure, panel = pyplot.subplots(figsize=(5.6, 3.6))
    for backbone, curve in sorted(curves.items()):
        mixes = sorted(curve)
        means = [estimate(curve[mix]).mean for mix in mixes]
        panel.plot(mixes, means, marker="o", markersize=4, label=backbone)
    panel.set_xlabel("γ")
    panel.set_ylabel("Recall@1 on unseen classes, %")
    panel.legend()
    return figure


def _recalls(records: Sequence[Record], row: str, split: str) -> list[float]:
    return [
        100 * record["scores"][split]["recall@1"]
        for record in records
        if record["row"] == row and split in record["scores"]
    ]
