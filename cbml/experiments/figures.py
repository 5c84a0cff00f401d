"""The paper's figures, each one command: the runs that it needs, and how it is drawn."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbml.errors import BadData, MissingExtra
from cbml.experiments.jobs import Job, Record, read_records, records_file, run_name
from cbml.experiments.leaderboard import Line
from cbml.experiments.model_figures import draw_examples, draw_similarity
from cbml.experiments.rendering import estimate
from cbml.experiments.rows import Table
from cbml.experiments.sources import Sources
from cbml.experiments.studies import FIGURE_TABLES
from cbml.files import replaced_file

_SEEN, _UNSEEN = "#9ecae1", "#08519c"
_TERMS = (("positive", "L_P"), ("negative", "L_N"), ("variance", "L_2"), ("loss", "L"))
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        table: The rows that must be run for it; its name is the figure's.
        draw: Makes a matplotlib figure of jobs, their records, the folder and the sources.
        fewest: Rows without which there is nothing to draw.
        drawn_apart: What a sweep may vary, because each of its values has a curve of its own.
    """

    table: Table
    draw: Callable[[Any, Sequence[Job], Sequence[Record], Path, Sources], Any]
    fewest: int = 1
    drawn_apart: str | None = None


def draw_gap(
    pyplot: Any, jobs: Sequence[Job], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """Two panels of bars, with and without labels: a pair of bars for each method."""
    del out, sources
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for panel, labels in zip(panels, ("known", "none"), strict=True):
        rows = [job.row for job in jobs if job.config.data.labels == labels]
        shown = list(dict.fromkeys(rows))
        for offset, split, color in ((-0.2, "train", _SEEN), (0.2, "test", _UNSEEN)):
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
                    color=color,
                    label={"train": "training classes", "test": "unseen classes"}[split],
                )
                panel.bar_label(bars, fmt="%.1f", fontsize=8)
        panel.set_xticks(range(len(shown)), shown, fontsize=7)
        panel.set_title("with labels" if labels == "known" else "without labels", fontsize=10)
        panel.grid(axis="x", visible=False)
    panels[0].set_ylabel("Recall@1, %")
    panels[0].set_ylim(0, 112)
    drawn = [panel for panel in panels if panel.containers]
    drawn[-1].legend(loc="upper right", ncols=2)
    return figure


def draw_terms(
    pyplot: Any, jobs: Sequence[Job], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """A row of panels for each row: L_P, L_N, L_2 and L over steps."""
    del out, sources
    names = list(dict.fromkeys(job.row for job in jobs))
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
    pyplot: Any, jobs: Sequence[Job], records: Sequence[Record], out: Path, sources: Sources
) -> Any:
    """A curve for each backbone."""
    del jobs, out, sources
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


def draw_leaderboard(lines: Sequence[Line], title: str, place: Path) -> None:
    """Recall@1 of all entries with their intervals, the best on top, and their time beside it."""
    pyplot = _pyplot()
    shown = [(line, line.recall) for line in reversed(lines) if line.recall]
    places = range(len(shown))
    with pyplot.rc_context(_STYLE):
        figure, (scores, times) = pyplot.subplots(
            1, 2, figsize=(8, 1.4 + 0.2 * len(shown)), sharey=True, width_ratios=[3, 1]
        )
        for at, (line, recall) in zip(places, shown, strict=True):
            color = _UNSEEN if line.name == "cbml" else "#737373"
            width = recall.half_width or None
            scores.errorbar(recall.mean, at, xerr=width, fmt="o", color=color, capsize=2)
            if line.seconds:
                times.plot([0, line.seconds], [at, at], color=color, linewidth=4)
        scores.set_yticks(places, [line.name for line, _ in shown], fontsize=8)
        scores.set_ylim(-0.7, len(shown) - 0.3)
        scores.set_xlabel("Recall@1 on unseen classes, %")
        times.set_xlim(left=0)
        times.set_xlabel("seconds per step")
        figure.suptitle(title, fontsize=11)
        _save(pyplot, figure, place)


def _recalls(records: Sequence[Record], row: str, split: str) -> list[float]:
    return [
        100 * record["scores"][split]["recall@1"]
        for record in records
        if record["row"] == row and split in record["scores"]
    ]


FIGURES = {
    figure.table.name: figure
    for figure in (
        Figure(FIGURE_TABLES["figure-gap"], draw_gap),
        Figure(FIGURE_TABLES["figure-similarity"], draw_similarity),
        Figure(FIGURE_TABLES["figure-terms"], draw_terms),
        Figure(FIGURE_TABLES["figure-gamma"], draw_gamma, drawn_apart="backbone"),
        Figure(FIGURE_TABLES["figure-examples"], draw_examples, fewest=2),
    )
}


def check_figure(figure: Figure, jobs: Sequence[Job]) -> None:
    """Refuse what cannot be drawn, before anything is trained for it.

    Args:
        figure: The figure to draw.
        jobs: The jobs that it would be drawn from.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "plots")
    known = sorted({job.config.data.source for job in jobs})
    if len(known) > 1:
        names = " or ".join(known)
        raise BadData(f"{figure.table.name}: shows one dataset; choose it with --data {names}")
    swept = {
        str({key: value for key, value in job.overrides.items() if key != figure.drawn_apart})
        for job in jobs
    }
    if len(swept) > 1:
        raise BadData(f"{figure.table.name}: shows one setting; give each --set one value")
    rows = {job.row for job in jobs}
    if len(rows) < figure.fewest:
        raise BadData(
            f"{figure.table.name}: needs {figure.fewest} rows whose runs finished; there "
            f"are {len(rows)}"
        )


def draw_figure(figure: Figure, jobs: Sequence[Job], out: Path, sources: Sources) -> Path:
    """Draw a figure from finished jobs into OUT/figures, and give its path.

    Args:
        figure: The figure to draw.
        jobs: Its jobs, all finished.
        out: Folder of runs and records.
        sources: Places of images and weights.
    """
    named = {run_name(job): job for job in sources.named(jobs)}
    records = [
        record
        for record in read_records(records_file(out, jobs[0]))
        if record["failed"] is None and record["run"] in named
    ]
    whole = {record["run"] for record in records}
    jobs = [job for name, job in named.items() if name in whole]
    check_figure(figure, jobs)
    pyplot = _pyplot()
    first = jobs[0]
    optimistic = any(job.optimistic for job in jobs)
    kind = f"{first.scale}-{first.config.data.source}{'-test' if optimistic else ''}"
    place = out / "figures" / f"{figure.table.name}-{kind}.png"
    with pyplot.rc_context(_STYLE):
        drawn = figure.draw(pyplot, jobs, records, out, sources)
        drawn.suptitle(f"{figure.table.title} ({_subtitle(jobs)})", fontsize=11)
        _save(pyplot, drawn, place)
    return place


def _pyplot() -> Any:
    """Matplotlib without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(place) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    pyplot.close(figure)


def _subtitle(jobs: Sequence[Job]) -> str:
    """Scale, images and networks, and whether the models were chosen on the test."""
    first = jobs[0]
    networks = dict.fromkeys(job.config.model.backbone for job in jobs)
    words = [f"{first.scale} scale", first.config.data.source, " and ".join(networks)]
    if any(job.optimistic for job in jobs):
        words.append("chosen on the test: optimistic")
    return ", ".join(words)
