"""The paper's figures of similarities, drawn with matplotlib."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData, MissingExtra
from cbml.files import replaced_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POSITIVE, NEGATIVE, INK, SOFT, GRID = "#2a78d6", "#eb6834", "#0b0b0b", "#52514e", "#e1e0d9"
COLORS = (POSITIVE, NEGATIVE, "#0c8a0c", "#8a4fbf", SOFT, INK)
BINS = 100
# A ratio of fewer pairs than this on either side is noise.
FEWEST = 5

# Row (which images), then column (which model).
# The analyses are those of `cbml.bayes`, which this package must not import.
Grid = Mapping[str, Mapping[str, Any]]


def draw_similarities(grid: Grid) -> "Figure":
    """Distributions of the similarities of positive and negative pairs, with their Gaussians.

    Args:
        grid: Analyses by images and model.
    """
    figure, axes = _axes(grid)
    for ax, one in _cells(axes, grid):
        plot_similarities(ax, one, similarity_limits(grid))
        ax.text(0.02, 0.96, _words(one), transform=ax.transAxes, va="top", color=SOFT, fontsize=8)
    note = "dashed: Gaussians of the same mean and spread"
    _finish(figure, axes, "similarity", "density", note, corner="upper right")
    return figure


def plot_similarities(ax: "Axes", one: Any, limits: tuple[float, float]) -> None:
    """Draw the distributions of one analysis, with their Gaussians.

    Args:
        ax: Where to draw them.
        one: The analysis.
        limits: The least and the largest similarity that is shown.
    """
    coarse, statistics, s = one.histogram.coarser(BINS), one.statistics, np.linspace(*limits, 400)
    for kind, color, word in (("positive", POSITIVE, "same"), ("negative", NEGATIVE, "different")):
        counts: NDArray[np.int64] = getattr(coarse, kind)
        mean, std = getattr(statistics, f"{kind}_mean"), getattr(statistics, f"{kind}_std")
        density = counts / counts.sum() * BINS / 2.0
        ax.stairs(density, coarse.edges, fill=True, color=color, alpha=0.28)
        ax.stairs(density, coarse.edges, color=color, linewidth=1.2, label=f"{word} class")
        if std > 0.0:
            gauss = np.exp(-(((s - mean) / std) ** 2) / 2.0) / (std * np.sqrt(2.0 * np.pi))
            ax.plot(s, gauss, color=color, linewidth=1.2, linestyle="--")
    ax.set_xlim(*limits)


def draw_ratios(grid: Grid) -> "Figure":
    """log₁₀ Φ_N as counted, and by the linear and the quadratic exponent.

    Args:
        grid: Analyses by images and model.
    """
    figure, axes = _axes(grid)
    for ax, one in _cells(axes, grid):
        plot_ratio(ax, one, similarity_limits(grid))
    _finish(
        figure,
        axes,
        "similarity",
        r"$\log_{10}\,\Phi_N$",
        r"$\Phi_N(s)$ = p[s | same] / p[s | different]",
        corner="lower right",  # the curves rise
    )
    return figure


def plot_ratio(ax: "Axes", one: Any, limits: tuple[float, float]) -> None:
    """Draw log₁₀ Φ_N of one analysis.

    Args:
        ax: Where to draw it.
        one: The analysis.
        limits: The least and the largest similarity that is shown.
    """
    coarse, s = one.histogram.coarser(BINS), np.linspace(*limits, 400)
    enough = (coarse.positive >= FEWEST) & (coarse.negative >= FEWEST)
    shares = [counts / counts.sum() for counts in (coarse.positive, coarse.negative)]
    ratio = np.log10(shares[0][enough] / shares[1][enough])
    ax.plot(coarse.centers[enough], ratio, "o", color=INK, markersize=3, label="counted")
    ax.axhline(0.0, color=GRID, zorder=0)
    for exponent, color in (("linear", POSITIVE), ("quadratic", NEGATIVE)):
        line = _log_ratio(one, exponent, s)
        if line is not None:
            ax.plot(s, line / np.log(10.0), color=color, linewidth=1.4, label=exponent)
    ax.set_xlim(*limits)
    ax.set_ylim(*_around(ratio))


def draw_reliability(checks: Mapping[str, Any]) -> "Figure":
    """Confidence against accuracy of results; the size of a point is how many there are.

    Args:
        checks: Reliability checks by their name in the legend.
    """
    figure = _figure(4.6, 4.4)
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle="--")
    for (name, check), color in zip(checks.items(), itertools.cycle(COLORS), strict=False):
        sizes = 12.0 + 160.0 * np.sqrt(np.array(check.counts) / sum(check.counts))
        ax.plot(check.confidence, check.accuracy, color=color, linewidth=1.2)
        label = f"{name}: ECE {check.ece:.3f}"
        ax.scatter(check.confidence, check.accuracy, s=sizes, color=color, alpha=0.7, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    ax.set_aspect("equal")
    ax.grid(color=GRID)
    ax.legend(loc="upper left", frameon=False, fontsize=8)
    return figure


def save_figure(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and as SVG.

    Args:
        figure: A matplotlib figure.
        folder: An existing folder.
        name: Name of the files, without an ending.
    """
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        with replaced_file(path) as temporary:
            plain: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(temporary, format=path.suffix[1:], dpi=144, metadata=plain)
    return paths


def _log_ratio(one: Any, exponent: Any, s: NDArray[np.float64]) -> Any:
    try:
        quadratic, slope, constant = one.statistics.ratio(exponent).negative
    except BadData:
        return None  # the classes are not told apart, or hardly spread: nothing to draw
    return (quadratic * s + slope) * s + constant


def _around(values: NDArray[np.float64]) -> tuple[float, float]:
    if not len(values):
        return -1.0, 1.0
    margin = 0.15 * max(float(np.ptp(values)), 1.0)
    return float(values.min()) - margin, float(values.max()) + margin


def _words(one: Any) -> str:
    statistics = one.statistics
    return (
        f"μ {statistics.positive_mean:.2f} / {statistics.negative_mean:.2f}\n"
        f"σ {statistics.positive_std:.2f} / {statistics.negative_std:.2f}\n"
        f"KS {one.positive_fit.distance:.2f} / {one.negative_fit.distance:.2f}"
    )


def similarity_limits(grid: Grid) -> tuple[float, float]:
    """Limits of the similarity axis: the 0.1 % quantile of negatives, in tenths, up to 1.

    Args:
        grid: Analyses by images and model.
    """
    lows = [-0.2]
    for row in grid.values():
        for one in row.values():
            total = np.cumsum(one.histogram.negative)
            ax = int(np.searchsorted(total, total[-1] / 1000))
            lows.append(float(np.floor(one.histogram.edges[ax] * 10) / 10))
    return max(-1.0, min(lows)), 1.0


def _figure(width: float, height: float) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    return Figure(figsize=(width, height), layout="constrained")


def _axes(grid: Grid) -> tuple["Figure", NDArray[Any]]:
    columns = max(len(row) for row in grid.values())
    figure = _figure(4.0 * columns, 2.7 * len(grid) + 0.5)
    axes = figure.subplots(len(grid), columns, squeeze=False)
    for ax in axes.flat:
        ax.set_visible(False)
    for line, (images, row) in zip(axes, grid.items(), strict=True):
        for ax, model in zip(line, row, strict=False):
            ax.set_visible(True)
            ax.set_title(f"{images}, {model}", fontsize=10)
    return figure, axes


def _cells(axes: NDArray[Any], grid: Grid) -> list[tuple["Axes", Any]]:
    return [
        (ax, one)
        for line, row in zip(axes, grid.values(), strict=True)
        for ax, one in zip(line, row.values(), strict=False)
    ]


def _finish(
    figure: "Figure", axes: NDArray[Any], across: str, up: str, note: str, corner: str
) -> None:
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    for ax in axes[-1]:
        ax.set_xlabel(across)
    for ax in axes[:, 0]:
        ax.set_ylabel(up)
    axes[0, 0].legend(loc=corner, frameon=False, fontsize=8)
    figure.supxlabel(note, fontsize=8, color=SOFT)
