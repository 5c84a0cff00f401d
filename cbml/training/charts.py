"""Small pictures of numbers as SVG text: lines, two histograms on one axis, said against seen."""

import math
from collections.abc import Sequence
from html import escape

__all__ = ["histogram_chart", "line_chart", "reliability_chart"]

_WIDTH, _HEIGHT = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 26


def line_chart(title: str, points: Sequence[tuple[float, float]], *, dots: bool = False) -> str:
    """A figure with one line; empty where there is nothing to draw.

    Args:
        title: above the line.
        points: x, usually the step, and y.
        dots: mark each point, for lines of few.
    """
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return ""
    low_x, high_x = points[0][0], max(points[-1][0], points[0][0] + 1)
    ticks = _ticks(min(y for _, y in points), max(y for _, y in points))
    low_y, high_y = ticks[0], ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        return _across((x - low_x) / (high_x - low_x)), _up((y - low_y) / (high_y - low_y))

    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    marks = [f'<polyline class="line" points="{path}"/>']
    for x, y in points if dots or len(points) == 1 else points[-1:]:
        across, up = place(x, y)
        hint = f"<title>step {x:g}: {y:.4g}</title>"
        marks.append(f'<circle class="dot" cx="{across:.1f}" cy="{up:.1f}" r="4">{hint}</circle>')
    rows = [(f"{tick:g}", _up((tick - low_y) / (high_y - low_y))) for tick in ticks]
    ends = [(f"{low_x:g}", _across(0.0)), (f"step {high_x:g}", _across(1.0))]
    value = f'<span class="value">{points[-1][1]:.4g}</span>'
    return _figure(f"{escape(title)} {value}", _grid(rows, ends) + "".join(marks))


def histogram_chart(
    title: str,
    edges: Sequence[float],
    positive: Sequence[float],
    negative: Sequence[float],
    means: tuple[float, float],
) -> str:
    """A figure with the shares of positive and of negative pairs in each bin.

    Args:
        title: above it.
        edges: of the bins, one more than bins.
        positive: share of the positive pairs in each bin.
        negative: share of the negative pairs in each bin.
        means: of the positive and of the negative pairs.
    """
    highest = max([*positive, *negative, 1e-9])
    ticks = _ticks(0.0, highest)
    low, high = edges[0], edges[-1]
    shapes = []
    for kind, shares in (("negative", negative), ("positive", positive)):
        corners = [(edges[0], 0.0)]
        for number, share in enumerate(shares):
            corners += [(edges[number], share), (edges[number + 1], share)]
        corners.append((edges[-1], 0.0))
        path = " ".join(
            f"{_across((x - low) / (high - low)):.1f},{_up(y / ticks[-1]):.1f}" for x, y in corners
        )
        shapes.append(f'<polygon class="{kind}" points="{path}"/>')
    rows = [(f"{tick:.0%}" if tick else "0", _up(tick / ticks[-1])) for tick in ticks]
    steps = [-1.0, -0.5, 0.0, 0.5, 1.0]
    marks = [(f"{x:g}", _across((x - low) / (high - low))) for x in steps if low <= x <= high]
    legend = "".join(
        f'<span class="key"><i class="{kind}"></i>{words}, mean {mean:.2f}</span>'
        for kind, words, mean in (
            ("positive", "same class", means[0]),
            ("negative", "different", means[1]),
        )
    )
    return _figure(f"{escape(title)} {legend}", _grid(rows, marks) + "".join(shapes))


def reliability_chart(
    title: str, said: Sequence[float], seen: Sequence[float], counts: Sequence[int]
) -> str:
    """A figure with the share that was right against the probability that was said.

    Args:
        title: above it.
        said: mean probability of each bin.
        seen: share of right results in it.
        counts: how many results it holds; the more, the larger its point.
    """
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    ends = f'x1="{_across(0)}" y1="{_up(0)}" x2="{_across(1)}" y2="{_up(1)}"'
    path = " ".join(f"{_across(x):.1f},{_up(y):.1f}" for x, y in zip(said, seen, strict=True))
    marks = [f'<line class="grid" {ends}/><polyline class="line" points="{path}"/>']
    for x, y, count in zip(said, seen, counts, strict=True):
        size = 3.0 + 6.0 * math.sqrt(count / max(sum(counts), 1))
        hint = f"<title>said {x:.2f}, right {y:.2f} of {count}</title>"
        place = f'cx="{_across(x):.1f}" cy="{_up(y):.1f}" r="{size:.1f}"'
        marks.append(f'<circle class="dot" {place}>{hint}</circle>')
    rows = [(f"{tick:.0%}" if tick else "0", _up(tick)) for tick in ticks]
    columns = [(f"{tick:g}", _across(tick)) for tick in ticks]
    return _figure(escape(title), _grid(rows, columns) + "".join(marks))


def _figure(caption: str, content: str) -> str:
    return (
        f'<figure><figcaption>{caption}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img">{content}</svg></figure>'
    )


def _grid(rows: Sequence[tuple[str, float]], columns: Sequence[tuple[str, float]]) -> str:
    parts = []
    for text, up in rows:
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up:.1f}" y2="{up:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{up + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for text, across in columns:
        anchor = "end" if across > _WIDTH - 30 else "start" if across < _LEFT + 5 else "middle"
        parts.append(
            f'<text x="{across:.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{text}</text>'
        )
    return "".join(parts)


def _across(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _up(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers that span the values."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / 3))
    step = next(factor * size for factor in (1, 2, 5, 10) if span / (factor * size) <= 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 1)
    # Digits that count, not decimals: a term that is nearly off has values of 1e-12.
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]
