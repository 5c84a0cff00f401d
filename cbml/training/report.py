"""report.html: one file that shows what a run did, without anything from the network."""

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cbml.files import replaced_file
from cbml.training.charts import histogram_chart, line_chart, reliability_chart
from cbml.training.runs import read_metrics, read_record
from cbml.training.style import STYLE
from cbml.training.tables import alarm_list, score_table, setting_tables

__all__ = ["Distribution", "Retrieval", "distribution", "thumbnail", "write_report"]

_BINS = 60


@dataclass(frozen=True)
class Distribution:
    """How similar the pairs of a set of pictures are.

    Args:
        title: which pictures.
        edges: of the bins.
        positive: share of the pairs of one class in each bin.
        negative: share of the pairs of two classes in each bin.
        means: of the similarities of pairs of one class, and of two; NaN without such pairs.
    """

    title: str
    edges: list[float]
    positive: list[float]
    negative: list[float]
    means: tuple[float, float]


@dataclass(frozen=True)
class Retrieval:
    """A query and its nearest pictures.

    Args:
        query: the picture as a data address.
        label: its class.
        neighbours: data address, similarity, class and whether it is the right one, of each.
    """

    query: str
    label: str
    neighbours: list[tuple[str, float, str, bool]]


def distribution(
    title: str, embeddings: NDArray[np.float32], labels: NDArray[np.int64]
) -> Distribution:
    """Histograms of the similarities of all pairs.

    Args:
        title: which pictures.
        embeddings: unit rows. (N, D)
        labels: of the rows. (N,)
    """
    rows, columns = np.triu_indices(len(labels), k=1)
    similarity = (embeddings @ embeddings.T)[rows, columns]
    same = labels[rows] == labels[columns]
    low = min(0.0, np.floor(float(similarity.min(initial=0.0)) * 10) / 10)
    edges = np.linspace(max(low, -1.0), 1.0, _BINS + 1)
    clipped = similarity.clip(edges[0], 1.0)
    positive, negative = (
        np.histogram(clipped[kind], edges)[0] / max(int(kind.sum()), 1) for kind in (same, ~same)
    )
    means = [float(similarity[kind].mean()) if kind.any() else math.nan for kind in (same, ~same)]
    return Distribution(
        title, edges.tolist(), positive.tolist(), negative.tolist(), (means[0], means[1])
    )


def thumbnail(pixels: Tensor, side: int = 72) -> str:
    """A picture as a data address.

    Args:
        pixels: (3, H, W) uint8.
        side: of the square it is fitted into.
    """
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((side * 2, side * 2))
    memory = io.BytesIO()
    picture.save(memory, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(memory.getvalue()).decode()


def write_report(
    folder: Path,
    distributions: Sequence[Distribution],
    worst: Sequence[Retrieval],
    best: Sequence[Retrieval],
) -> None:
    """Write report.html of a run from its records and from what is given.

    Args:
        folder: of the run.
        distributions: of similarities, each a figure; the queries are of the last.
        worst: queries that found the wrong pictures first.
        best: queries that found the right ones.
    """
    record, metrics = read_record(folder), read_metrics(folder)
    name = escape(folder.name)
    among = f" among {distributions[-1].title}" if distributions else ""
    body = [
        f"<h1>{name}</h1><p>{escape(_subtitle(record))}</p>",
        _section("Alarms", alarm_list(metrics), kind="alarms"),
        _section("Scores", score_table(record, metrics), kind="scores"),
        _curves(metrics),
        _section("Similarities of pairs", "".join(_histogram(one) for one in distributions)),
        _section(
            "Match probabilities",
            _reliability(folder / "calibration.json", record.get("test_reliability")),
        ),
        _queries(f"Worst queries{among}", worst),
        _queries(f"Best queries{among}", best),
        _section("Settings", setting_tables(record), kind="settings"),
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{name}</title><style>{STYLE}</style></head><body><main>"
        f"{''.join(body)}</main></body></html>\n"
    )
    with replaced_file(folder / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")


def _subtitle(record: Mapping[str, Any]) -> str:
    recipe, environment = record.get("recipe", {}), record.get("environment", {})
    words = [
        f"{recipe.get('data')}, {recipe.get('backbone')}, loss {recipe.get('loss')}",
        f"{record.get('steps_done', 0)} steps",
        f"commit {environment.get('commit')}",
    ]
    return " · ".join(words)


def _section(title: str, content: str, kind: str = "figures") -> str:
    if not content:
        return ""
    return f'<section><h2>{escape(title)}</h2><div class="{kind}">{content}</div></section>'


def _reliability(path: Path, tested: Mapping[str, Any] | None) -> str:
    """How far the probabilities of calibration.json held; empty where a run has none."""
    try:
        check = json.loads(path.read_text(encoding="utf-8"))["check"]
        shown = _reliability_chart("halves of the held-out classes, each by the other", check)
        if tested is not None:
            shown += _reliability_chart("test classes, which nothing was learned from", tested)
        return shown
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError):
        return "<p>calibration.json is damaged; write it again with cbml analyze.</p>"


def _reliability_chart(where: str, check: Mapping[str, Any]) -> str:
    title = f"Share of right results against the probability said, on {where}"
    chart = reliability_chart(title, check["said"], check["seen"], check["counts"])
    return f"{chart}<p>Calibration error {check['ece']:.3f}, Brier {check['brier']:.3f}.</p>"


def _histogram(one: Distribution) -> str:
    return histogram_chart(one.title, one.edges, one.positive, one.negative, one.means)


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    titles = {
        "loss": "L, the loss",
        "positive": "L_P, positive pairs",
        "negative": "L_N, negative pairs",
        "variance": "L_2, variance of the negatives",
    }
    charts = [
        line_chart(
            title, [(line["step"], line[name]) for line in metrics if line.get(name) is not None]
        )
        for name, title in titles.items()
    ]
    scores = [
        (line["step"], line["validation"].get("recall@1"))
        for line in metrics
        if "validation" in line and line["validation"].get("recall@1") is not None
    ]
    charts.append(line_chart("Recall@1 on held-out classes", scores, dots=True))
    return _section("Course of the training", "".join(charts))


def _queries(title: str, queries: Sequence[Retrieval]) -> str:
    rows = []
    for query in queries:
        tiles = [_tile(query.query, "query", query.label, "query")]
        for address, similarity, label, right in query.neighbours:
            mark, kind = ("✓", "right") if right else ("✗", "wrong")
            tiles.append(_tile(address, f"{mark} {similarity:.2f}", label, kind))
        rows.append(f'<div class="row">{"".join(tiles)}</div>')
    return _section(title, "".join(rows), kind="queries")


def _tile(address: str, text: str, label: str, kind: str) -> str:
    return (
        f'<figure class="tile {kind}" title="{escape(label, quote=True)}">'
        f'<img src="{address}" alt="{escape(label, quote=True)}">'
        f"<figcaption>{escape(text)}<span>{escape(label)}</span></figcaption></figure>"
    )
