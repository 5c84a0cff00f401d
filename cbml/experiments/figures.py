"""The paper's figures, each one command: the runs that it needs, and how it is drawn."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbml.errors import BadData, MissingExtra
from cbml.experiments import figure_examples, figure_lines, figure_similarity
from cbml.experiments.figure_rows import EXAMPLES, GAMMA, GAP, SIMILARITY, TERMS
from cbml.experiments.records import read_records, records_file
from cbml.experiments.rows import Table
from cbml.experiments.sources import Sources
from cbml.experiments.units import Unit
from cbml.files import replaced_file

__all__ = ["FIGURES", "Figure", "draw_figure", "find_figure"]


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        table: the rows that must be run for it; its name is the figure's.
        draw: makes a matplotlib figure of units, their records, the folder and the sources.
    """

    table: Table
    draw: Callable[[Any, Sequence[Unit], Sequence[dict[str, Any]], Path, Sources], Any]


FIGURES = {
    figure.table.name: figure
    for figure in (
        Figure(GAP, figure_lines.draw_gap),
        Figure(SIMILARITY, figure_similarity.draw_similarity),
        Figure(TERMS, figure_lines.draw_terms),
        Figure(GAMMA, figure_lines.draw_gamma),
        Figure(EXAMPLES, figure_examples.draw_examples),
    )
}


def find_figure(name: str) -> Figure:
    """The figure of that name.

    Args:
        name: such as "figure-gap".
    """
    if name not in FIGURES:
        near = difflib.get_close_matches(name, FIGURES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(FIGURES)}"
        raise BadData(f"figure {name!r}: no such figure; {hint}")
    return FIGURES[name]


def draw_figure(figure: Figure, units: Sequence[Unit], out: Path, sources: Sources) -> Path:
    """Draw a figure from finished units into OUT/figures, and give its path.

    Args:
        figure: what to draw.
        units: all finished.
        out: folder of runs and records.
        sources: places of pictures and weights.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    units = [sources.named(unit) for unit in units]
    wanted = {(unit.row, unit.recipe.seed, unit.overrides, unit.protocol) for unit in units}
    records = [
        record
        for record in read_records(records_file(out, units[0]))
        if record["failed"] is None
        and (record["row"], record["seed"], tuple(record["overrides"]), record["protocol"])
        in wanted
    ]
    first = units[0]
    place = out / "figures" / f"{figure.table.name}-{first.scale}-{first.recipe.data}.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(_STYLE):
        drawn = figure.draw(pyplot, units, records, out, sources)
        facts = f"{first.scale} scale, {first.recipe.data}, {first.recipe.backbone}"
        drawn.suptitle(f"{figure.table.title} ({facts})", fontsize=11)
        with replaced_file(place) as temporary:
            drawn.savefig(temporary, format="png", dpi=120)
        pyplot.close(drawn)
    return place


_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
