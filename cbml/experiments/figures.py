"""The paper's figures, each one command: the runs that it needs, and how it is drawn."""

import importlib.util
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
from cbml.experiments.units import Unit, run_name
from cbml.files import replaced_file

__all__ = ["FIGURES", "Figure", "check_figure", "draw_figure"]


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        table: the rows that must be run for it; its name is the figure's.
        draw: makes a matplotlib figure of units, their records, the folder and the sources.
        fewest: rows without which there is nothing to draw.
        drawn_apart: what a sweep may vary, because each of its values has a curve of its own.
    """

    table: Table
    draw: Callable[[Any, Sequence[Unit], Sequence[dict[str, Any]], Path, Sources], Any]
    fewest: int = 1
    drawn_apart: str | None = None


FIGURES = {
    figure.table.name: figure
    for figure in (
        Figure(GAP, figure_lines.draw_gap),
        Figure(SIMILARITY, figure_similarity.draw_similarity),
        Figure(TERMS, figure_lines.draw_terms),
        Figure(GAMMA, figure_lines.draw_gamma, drawn_apart="backbone"),
        Figure(EXAMPLES, figure_examples.draw_examples, fewest=2),
    )
}


def check_figure(figure: Figure, units: Sequence[Unit]) -> None:
    """Refuse what cannot be drawn, before anything is trained for it.

    Args:
        figure: what to draw.
        units: that it would be drawn from.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "plots")
    sets = sorted({unit.recipe.data for unit in units})
    if len(sets) > 1:
        raise BadData(f"{figure.table.name}: is of one set; choose by --data {' or '.join(sets)}")
    swept = {
        tuple(word for word in unit.overrides if word.partition("=")[0] != figure.drawn_apart)
        for unit in units
    }
    if len(swept) > 1:
        raise BadData(f"{figure.table.name}: is of one setting; give one value to each --set")
    rows = {unit.row for unit in units}
    if len(rows) < figure.fewest:
        raise BadData(
            f"{figure.table.name}: needs {figure.fewest} rows whose runs did not break off; there "
            f"are {len(rows)}"
        )


def draw_figure(figure: Figure, units: Sequence[Unit], out: Path, sources: Sources) -> Path:
    """Draw a figure from finished units into OUT/figures, and give its path.

    Args:
        figure: what to draw.
        units: all finished.
        out: folder of runs and records.
        sources: places of pictures and weights.
    """
    named = {run_name(unit): unit for unit in sources.named(units)}
    records = [
        record
        for record in read_records(records_file(out, units[0]))
        if record["failed"] is None and record["run"] in named
    ]
    whole = {record["run"] for record in records}
    units = [unit for name, unit in named.items() if name in whole]
    check_figure(figure, units)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    first = units[0]
    optimistic = any(unit.protocol == "paper" for unit in units)
    kind = f"{first.scale}-{first.recipe.data}{'-paper' if optimistic else ''}"
    place = out / "figures" / f"{figure.table.name}-{kind}.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(_STYLE):
        drawn = figure.draw(pyplot, units, records, out, sources)
        drawn.suptitle(f"{figure.table.title} ({_facts(units)})", fontsize=11)
        with replaced_file(place) as temporary:
            drawn.savefig(temporary, format="png", dpi=120)
        pyplot.close(drawn)
    return place


def _facts(units: Sequence[Unit]) -> str:
    """Scale, pictures and networks, and whether the models were chosen on the test."""
    first = units[0]
    networks = dict.fromkeys(unit.recipe.backbone for unit in units)
    words = [f"{first.scale} scale", first.recipe.data, " and ".join(networks)]
    if any(unit.protocol == "paper" for unit in units):
        words.append("chosen on the test: optimistic")
    return ", ".join(words)


_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
