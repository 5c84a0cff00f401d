"""The paper's figures, each one command: the runs that it needs, and how it is drawn."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.bayes import SetAnalysis, analyze_set
from cbml.data import ImageDataset, PackedDataset
from cbml.errors import BadData, MissingExtra
from cbml.experiments.jobs import Job, Record, read_records, records_file, run_name
from cbml.experiments.rendering import estimate
from cbml.experiments.rows import Table
from cbml.experiments.sources import Sources
from cbml.experiments.studies import FIGURE_TABLES
from cbml.files import replaced_file
from cbml.models import Embedder
from cbml.report import plot_ratio, plot_similarities, similarity_limits
from cbml.runs import build_model, load_splits
from cbml.training import embed_dataset

_SEEN, _UNSEEN = "#9ecae1", "#08519c"
_TERMS = (("positive", "L_P"), ("negative", "L_N"), ("variance", "L_2"), ("loss", "L"))
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


_IMAGES = 3000
_QUERIES, _FOUND = 6, 5
_RELEVANT, _IRRELEVANT = "#1a9850", "#d73027"

Vectors = NDArray[np.float32]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, and the rows it is drawn from.

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
                index + offset: estimate(values)
                for index, name in enumerate(shown)
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
        names = [name.partition(" without labels")[0] for name in shown]  # the title says it
        panel.set_xticks(range(len(shown)), names, fontsize=9)
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


def _recalls(records: Sequence[Record], row: str, split: str) -> list[float]:
    return [
        100 * record["scores"][split]["recall@1"]
        for record in records
        if record["row"] == row and split in record["scores"]
    ]


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
    grid = {
        name: {which: _analysis(model, images) for which, images in sets.items()}
        for name, model in models.items()
    }
    size = (12, 2.3 * len(models))
    figure, panels = pyplot.subplots(len(models), 4, figsize=size, squeeze=False)
    for line, (name, row) in zip(panels, grid.items(), strict=True):
        for index, (which, one) in enumerate(row.items()):
            plot_similarities(line[index], one, similarity_limits(grid))
            plot_ratio(line[index + 2], one, similarity_limits(grid))
            line[index].set_title(f"{name}: {which}", fontsize=9)
            line[index + 2].set_title(f"log₁₀ Φ_N, {which}", fontsize=9)
    for panel in panels[0][[0, 2]]:
        panel.legend(loc="best", fontsize=7)
    for panel in panels[-1]:
        panel.set_xlabel("similarity")
    return figure


def _analysis(model: Embedder, images: ImageDataset) -> SetAnalysis:
    dataset = PackedDataset.of(images, model.preprocessing.crop)
    return analyze_set(embed_dataset(model, dataset), dataset.images.known_labels)


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
    """The nearest other vectors of each vector, (N, count)."""
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
    pyplot = open_pyplot()
    first = jobs[0]
    optimistic = any(job.optimistic for job in jobs)
    kind = f"{first.scale}-{first.config.data.source}{'-test' if optimistic else ''}"
    index = out / "figures" / f"{figure.table.name}-{kind}.png"
    with pyplot.rc_context(STYLE):
        drawn = figure.draw(pyplot, jobs, records, out, sources)
        drawn.suptitle(f"{figure.table.title} ({_subtitle(jobs)})", fontsize=11)
        save_png(pyplot, drawn, index)
    return index


def open_pyplot() -> Any:
    """Matplotlib without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_png(pyplot: Any, figure: Any, index: Path) -> None:
    """Write a figure, whole or not at all, and forget it."""
    index.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(index) as temporary:
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
