"""The demonstration as one page: scores, the same questions before and after, the analysis."""

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cbml.bayes.analysis import SetAnalysis
from cbml.evaluation import Scores
from cbml.experiments.demo_promises import Promises, promises_section
from cbml.files import replaced_file
from cbml.training.assembly import Shelf
from cbml.training.charts import histogram_chart
from cbml.training.report import thumbnail
from cbml.training.style import STYLE

__all__ = ["Sight", "by_gain", "write_demo_report"]

_NEIGHBOURS, _FEWEST = 6, 3
_EACH = 4
_BINS = 80
_SIDE = 72
_STYLE = """
h3 { font-size: 15px; margin: 18px 0 6px; } .lead { font-size: 19px; color: var(--ink); }
.pair { display: flex; gap: 14px; margin: 0 0 16px; }
.pair > div { min-width: 0; } .pair p { margin: 0 0 2px; font-size: 12px; }
.scores td.better { color: var(--right); } pre { background: var(--surface); padding: 12px;
border: 1px solid var(--grid); border-radius: 8px; overflow-x: auto; }
"""


@dataclass(frozen=True, eq=False)
class Sight:
    """How one network sees a set of pictures.

    Args:
        rows: unit vectors. (N, D)
        scores: of every picture as a query among the others.
        analysis: of all pairs.
    """

    rows: NDArray[np.float32]
    scores: Scores
    analysis: SetAnalysis


def write_demo_report(
    path: Path,
    sentence: str,
    shelf: Shelf,
    before: Sight,
    after: Sight,
    promises: Promises | None,
) -> None:
    """Write the page; nothing in it comes from the network.

    Args:
        path: of the page.
        sentence: what was learned.
        shelf: the pictures.
        before: how the untrained network sees them.
        after: how the trained one does.
        promises: of match probabilities; None where there are none.
    """
    body = [
        f"<h1>What the network learned</h1><p class='lead'>{escape(sentence)}</p>",
        f"<h2>Scores on classes never seen</h2><div class='scores'>{_scores(before, after)}</div>",
        _questions(shelf, before, after),
        _analysis(before.analysis, after.analysis, promises),
        _next(path.parent, int(by_gain(before, after)[0])),
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>cbml demo</title><style>{STYLE}{_STYLE}</style></head><body><main>"
        f"{''.join(body)}</main></body></html>\n"
    )
    with replaced_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def by_gain(before: Sight, after: Sight) -> NDArray[np.int64]:
    """The pictures that can find one of their class, those first whose results gained most.

    Args:
        before: how the untrained network sees them.
        after: how the trained one does.
    """
    old, new = before.scores.average_precisions, after.scores.average_precisions
    assert old is not None
    assert new is not None
    asked = np.flatnonzero(after.scores.positives > 0)
    return asked[np.argsort((old - new)[asked], kind="stable")]


def _scores(before: Sight, after: Sight) -> str:
    def values(scores: Scores) -> dict[str, float | None]:
        recall = {f"Recall@{k}": scores.recall[k] for k in (1, 2, 4, 8) if k in scores.recall}
        return {**recall, "MAP@R": scores.map_at_r, "NMI": scores.nmi}

    old, new = values(before.scores), values(after.scores)
    rows = []
    for name, was in old.items():
        now = new[name]
        if was is None or now is None:
            continue
        kind = ' class="better"' if now > was else ""
        rows.append(
            f"<tr><th>{name}</th><td>{was:.1%}</td><td>{now:.1%}</td>"
            f"<td{kind}>{100 * (now - was):+.1f}</td></tr>"
        )
    heads = "<tr><th></th><th>before</th><th>after</th><th>points</th></tr>"
    return f"<table>{heads}{''.join(rows)}</table>"


def _questions(shelf: Shelf, before: Sight, after: Sight) -> str:
    """Queries that gained most, some drawn by lot, and those that lost most."""
    order = by_gain(before, after)
    lot = np.random.default_rng(0).permutation(np.sort(order))
    parts = []
    for title, places in (
        ("Drawn by lot", lot),
        ("Gained most", order),
        ("Lost most", order[::-1]),
    ):
        blocks = [
            _question(shelf, place, before, after)
            for place in _one_per_class(places, shelf.images.known_labels)
        ]
        parts.append(f"<h3>{title}</h3>{''.join(blocks)}")
    return (
        "<h2>The same questions before and after</h2><p>Left the picture that asks, then its "
        "nearest among all the others; green is the right class.</p>" + "".join(parts)
    )


def _one_per_class(places: NDArray[np.int64], labels: NDArray[np.int64]) -> Sequence[int]:
    first = np.sort(np.unique(labels[places], return_index=True)[1])
    chosen: list[int] = places[first][:_EACH].tolist()
    return chosen


def _question(shelf: Shelf, place: int, before: Sight, after: Sight) -> str:
    labels = shelf.images.known_labels
    # Behind the last right picture all are wrong, and nobody is to blame for it.
    count = min(_NEIGHBOURS, max(_FEWEST, int((labels == labels[place]).sum()) - 1))
    rows = []
    for title, sight in (("before", before), ("after", after)):
        similarity = sight.rows @ sight.rows[place]
        similarity[place] = -np.inf
        tiles = [
            _tile(
                shelf,
                other,
                f"{'✓' if labels[other] == labels[place] else '✗'} {similarity[other]:.2f}",
                "right" if labels[other] == labels[place] else "wrong",
            )
            for other in np.argsort(-similarity, kind="stable")[:count].tolist()
        ]
        rows.append(f"<p>{title}</p><div class='row'>{''.join(tiles)}</div>")
    query = _tile(shelf, place, "query", "query")
    return f"<div class='pair'><div><p>&nbsp;</p>{query}</div><div>{''.join(rows)}</div></div>"


def _tile(shelf: Shelf, place: int, text: str, kind: str) -> str:
    pixels = shelf.packed.sized(shelf.numbers[place], min(_SIDE, shelf.packed.short_side))
    label = escape(shelf.images.class_names[shelf.images.known_labels[place]], quote=True)
    return (
        f'<figure class="tile {kind}" title="{label}"><img src="{thumbnail(pixels, _SIDE // 2)}" '
        f'alt="{label}"><figcaption>{escape(text)}<span>{label}</span></figcaption></figure>'
    )


def _analysis(before: SetAnalysis, after: SetAnalysis, promises: Promises | None) -> str:
    figures = "".join(
        _histogram(title, one) for title, one in (("before", before), ("after", after))
    )
    text = (
        "CBML assumes that similarities of pairs of one class and of two classes follow a Gaussian "
        "each, and pushes pairs by the posterior probability that follows. Separation is the "
        "distance of the two means in units of their spread: "
        f"{_separation(before):.2f} before, {_separation(after):.2f} after."
    )
    return (
        f"<h2>Similarities of all pairs</h2><p>{text}</p><div class='figures'>{figures}</div>"
        f"{promises_section(promises)}"
    )


def _histogram(title: str, one: SetAnalysis) -> str:
    coarse, moments = one.histogram.coarser(_BINS), one.statistics
    kept = coarse.edges[:-1] >= -0.4  # what lies further left is empty or nearly so
    edges = [float(edge) for edge in coarse.edges[np.append(kept, True)]]
    shares = [
        (counts[kept] / max(int(counts.sum()), 1)).tolist()
        for counts in (coarse.positive, coarse.negative)
    ]
    means = (moments.positive_mean, moments.negative_mean)
    return histogram_chart(title, edges, shares[0], shares[1], means)


def _separation(one: SetAnalysis) -> float:
    moments = one.statistics
    spread = math.hypot(moments.positive_std, moments.negative_std) / math.sqrt(2.0)
    return (moments.positive_mean - moments.negative_mean) / spread


def _next(folder: Path, example: int) -> str:
    gallery = shlex.quote(str(folder / "gallery"))
    lines: Iterable[str] = (
        f"cbml serve {gallery} --open",
        f"cbml search {gallery} --id {example}",
        "cbml train my-pictures/",
    )
    return (
        f"<h2>Next</h2><pre>{escape(chr(10).join(lines))}</pre>"
        "<p>The course of the training: run/report.html beside this file.</p>"
    )
