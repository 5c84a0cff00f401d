"""Small charts as SVG text, so that a page needs no script and no image file."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 26

Points = Sequence[tuple[float, float]]
Range = tuple[float, float]
Color = Literal["positive", "negative", "third"]


@dataclass(frozen=True)
class Series:
    """One line, area or cloud of points of a chart.

    Args:
        points: x and y of each point.
        color: Which of the page's colors.
        shape: How the points are drawn.
        name: Name in the legend; no entry when empty.
        hints: Text of each dot when the mouse rests on it.
        sizes: Radius of each dot.
    """

    points: Points
    color: Color = "positive"
    shape: Literal["line", "dashed", "area", "dots"] = "line"
    name: str = ""
    hints: Sequence[str] = ()
    sizes: Sequence[float] = ()


def chart(
    title: str,
    series: Sequence[Series],
    *,
    x: Range,
    y: Range,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    value: str = "",
) -> Markup:
    """A figure with its caption, legend and grid.

    Args:
        x_ticks: Where the x axis has numbers, and their texts.
        y_ticks: Where the y axis has lines, and their texts.
        value: A number on the right of the caption.
    """

    def place(px: float, py: float) -> tuple[float, float]:
        across = _LEFT + (px - x[0]) / (x[1] - x[0]) * (_WIDTH - _LEFT - _RIGHT)
        up = (min(max(py, y[0]), y[1]) - y[0]) / (y[1] - y[0])
        return across, _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    grid = [_row(text, place(x[0], tick)[1]) for tick, text in y_ticks]
    grid += [_column(text, place(tick, y[0])[0]) for tick, text in x_ticks]
    drawn = Markup().join([*grid, *(_drawn(one, place, y) for one in series)])
    legend = Markup().join(
        Markup('<span class="key"><i class="{}"></i>{}</span>').format(one.color, one.name)
        for one in series
        if one.name
    )
    if value:
        legend += Markup('<span class="value">{}</span>').format(value)
    return Markup(
        '<figure><figcaption>{} {}</figcaption><svg viewBox="0 0 {} {}" role="img" '
        'aria-label="{}">{}</svg></figure>'
    ).format(title, legend, _WIDTH, _HEIGHT, title, drawn)


def line_chart(title: str, points: Points, *, dots: bool = False) -> Markup:
    """A figure with one line over steps; empty where there is nothing to draw.

    Args:
        title: Caption.
        points: Step and value.
        dots: Mark each point, for lines of few.
    """
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return Markup("")
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    ticks = _ticks(min(y for _, y in points), max(y for _, y in points))
    marked = points if dots or len(points) == 1 else points[-1:]
    return chart(
        title,
        [
            Series(points),
            Series(marked, shape="dots", hints=[f"step {x:g}: {y:.4g}" for x, y in marked]),
        ],
        x=(first, last),
        y=(ticks[0], ticks[-1]),
        x_ticks=[(first, f"{first:g}"), (last, f"step {last:g}")],
        y_ticks=[(tick, f"{tick:g}") for tick in ticks],
        value=f"{points[-1][1]:.4g}",
    )


def histogram_chart(
    title: str,
    edges: Sequence[float],
    positive: Sequence[float],
    negative: Sequence[float],
    means: tuple[float, float],
    lines: Sequence[Series] = (),
) -> Markup:
    """A figure with the shares of positive and of negative pairs by similarity.

    Args:
        title: Caption.
        edges: Edges of the bins, one more than bins.
        positive: Share of the positive pairs in each bin.
        negative: Share of the negative pairs in each bin.
        means: Mean similarity of the positive and of the negative pairs.
        lines: Drawn on top, such as fitted densities.
    """
    ticks = _ticks(0.0, max([*positive, *negative, 1e-9]))
    low, high = edges[0], edges[-1]
    same, different = (f"{round(mean, 2) + 0.0:.2f}" for mean in means)  # and never -0.00
    return chart(
        title,
        [
            Series(
                _stairs(edges, negative), "negative", "area", f"different labels, mean {different}"
            ),
            Series(_stairs(edges, positive), "positive", "area", f"same label, mean {same}"),
            *lines,
        ],
        x=(low, high),
        y=(0.0, ticks[-1]),
        x_ticks=_inner_ticks(low, high),
        y_ticks=[(tick, f"{tick:.0%}" if tick else "0") for tick in ticks],
    )


def reliability_chart(
    title: str, confidence: Sequence[float], accuracy: Sequence[float], counts: Sequence[int]
) -> Markup:
    """A figure with the share of relevant results against their stated probability.

    Args:
        title: Caption.
        confidence: Mean probability of each bin.
        accuracy: Share of relevant results in it.
        counts: How many results it holds; the more, the larger its point.
    """
    points = list(zip(confidence, accuracy, strict=True))
    total = max(sum(counts), 1)
    quarters = (0.0, 0.25, 0.5, 0.75, 1.0)
    dots = Series(
        points,
        shape="dots",
        hints=[
            f"confidence {x:.2f}, accuracy {y:.2f} of {count}"
            for (x, y), count in zip(points, counts, strict=True)
        ],
        sizes=[3.0 + 6.0 * math.sqrt(count / total) for count in counts],
    )
    return chart(
        title,
        [Series([(0, 0), (1, 1)], "third", "dashed"), Series(points), dots],
        x=(0.0, 1.0),
        y=(0.0, 1.0),
        x_ticks=[(tick, f"{tick:g}") for tick in quarters],
        y_ticks=[(tick, f"{tick:.0%}" if tick else "0") for tick in quarters],
    )


def ratio_chart(title: str, counted: Points, lines: Sequence[Series], x: Range) -> Markup:
    """A figure with log₁₀ of a likelihood ratio: counted, and by formulas.

    Args:
        title: Caption.
        counted: Similarity and log ratio of each bin with enough pairs.
        lines: The formulas.
        x: Lowest and highest similarity.
    """
    values = [-0.5, 0.5, *(y for _, y in counted)]  # few bins must not stretch what is drawn
    ticks = _ticks(min(values), max(values))
    return chart(
        title,
        [*lines, Series(counted, "third", "dots", "counted", sizes=[2.5] * len(counted))],
        x=x,
        y=(ticks[0], ticks[-1]),
        x_ticks=_inner_ticks(*x),
        y_ticks=[(tick, f"{tick:g}") for tick in ticks],
    )


def _drawn(one: Series, place: Callable[[float, float], tuple[float, float]], y: Range) -> Markup:
    spots = [place(px, py) for px, py in one.points]
    if one.shape == "dots":
        sizes = one.sizes or [4.0] * len(spots)
        hints = one.hints or [""] * len(spots)
        return Markup().join(
            Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}">{}</circle>').format(
                one.color, across, up, size, Markup("<title>{}</title>").format(hint)
            )
            for (across, up), size, hint in zip(spots, sizes, hints, strict=True)
        )
    if one.shape == "area":
        return Markup('<polygon class="{}" points="{}"/>').format(one.color, _path(spots))
    dashed = " dashed" if one.shape == "dashed" else ""
    return Markup().join(
        Markup('<polyline class="line {}{}" points="{}"/>').format(
            one.color, dashed, _path([place(*point) for point in run])
        )
        for run in _runs_within(one.points, y)
    )


def _path(spots: Points) -> str:
    return " ".join(f"{across:.1f},{up:.1f}" for across, up in spots)


def _runs_within(points: Points, y: Range) -> list[Points]:
    """The parts of a line inside a range of y; where it leaves the range it ends, at the border."""
    if len(points) == 1:
        return [points]
    runs: list[list[tuple[float, float]]] = []
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        # From where to where, as shares of the way, the segment is inside.
        shares = sorted((bound - y1) / (y2 - y1) for bound in y) if y1 != y2 else (0.0, 1.0)
        start, end = max(shares[0], 0.0), min(shares[1], 1.0)
        if start > end or (y1 == y2 and not y[0] <= y1 <= y[1]):
            continue
        first, last = ((x1 + t * (x2 - x1), y1 + t * (y2 - y1)) for t in (start, end))
        if start > 0 or not runs or runs[-1][-1] != (x1, y1):
            runs.append([first])
        runs[-1].append((x2, y2) if end == 1 else last)
    return list(runs)


def _stairs(edges: Sequence[float], heights: Sequence[float]) -> Points:
    corners = [(edges[0], 0.0)]
    for left, right, height in zip(edges, edges[1:], heights, strict=False):
        corners += [(left, height), (right, height)]
    return [*corners, (edges[-1], 0.0)]


def _row(text: str, up: float) -> Markup:
    return Markup(
        '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
        '<text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
    ).format(_LEFT, _WIDTH - _RIGHT, up, up, _LEFT - 6, up + 4, escape(text))


def _column(text: str, across: float) -> Markup:
    anchor = "end" if across > _WIDTH - 30 else "start" if across < _LEFT + 5 else "middle"
    return Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
        across, _HEIGHT - 6, anchor, escape(text)
    )


def _inner_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Round numbers between two others, with their texts."""
    return [(tick, f"{tick:g}") for tick in _ticks(low, high) if low <= tick <= high]


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers that span the values; from zero where all are equal.

    A Recall@1 that is always 100 % must not seem to have room above it.
    """
    if low == high:
        low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / 3))
    step = next(factor * size for factor in (1, 2, 5, 10) if span / (factor * size) <= 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 1)
    # Digits that count, not decimals: a term that is nearly off has values of 1e-12.
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]
