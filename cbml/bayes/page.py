"""analysis.html: the numbers and figures of an analysis in one file, without the network."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from cbml.bayes.analysis import SetAnalysis
from cbml.files import replaced_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HEADS", "table_rows", "write_page"]

HEADS = ("pictures", "model", "μ_P", "σ_P", "μ_N", "σ_N", "KS P", "KS N", "ECE Gauss", "ECE free")
_STYLE = """
body { margin: 0; background: #f9f9f7; color: #0b0b0b;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 8px; } h2 { font-size: 18px; margin: 32px 0 10px; }
p { color: #52514e; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 0; text-align: right; } tr + tr { border-top: 1px solid #e1e0d9; }
th, td:nth-child(-n+2) { font-weight: 500; } td:nth-child(-n+2) { text-align: left; }
.scroll { overflow-x: auto; }
figure { margin: 0; background: #fff; border: 1px solid #e1e0d9; border-radius: 8px; }
svg { width: 100%; height: auto; display: block; } .narrow { max-width: 520px; }
"""


def table_rows(grid: Mapping[str, Mapping[str, SetAnalysis]]) -> list[tuple[str, ...]]:
    """One row of words and numbers for each analysis, under HEADS.

    Args:
        grid: analyses by pictures and model.
    """
    rows = []
    for pictures, row in grid.items():
        for model, one in row.items():
            facts = one.statistics
            numbers = [
                *(facts.positive_mean, facts.positive_std),
                *(facts.negative_mean, facts.negative_std),
                *(one.positive_fit.distance, one.negative_fit.distance),
            ]
            checks = [one.posteriors.get(name) for name in ("gaussian", "monotone")]
            errors = ["–" if check is None else f"{check.ece:.4f}" for check in checks]
            rows.append((pictures, model, *(f"{number:.3f}" for number in numbers), *errors))
    return rows


def write_page(
    path: Path,
    title: str,
    rows: Sequence[tuple[str, ...]],
    figures: Mapping[str, tuple[str, "Figure"]],
) -> None:
    """Write one self-contained page.

    Args:
        path: of the file.
        title: the run's name.
        rows: of the table.
        figures: heading -> a sentence about it and the drawing.
    """
    heads = "".join(f"<th>{escape(head)}</th>" for head in HEADS)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<div class="scroll"><table><tr>{heads}</tr>{lines}</table></div>',
        "<p>Mean μ and spread σ of the similarities of positive (P) and negative (N) pairs; the "
        "largest gap between their distribution functions and Gaussians (KS); and the calibration "
        "error of pair posteriors, by Gaussians and by a free monotone curve, each learned from "
        "half of the classes and checked on the other.</p>",
    ]
    for heading, (sentence, figure) in figures.items():
        kind = "narrow" if figure.get_figwidth() < 6 else "wide"
        parts.append(
            f"<h2>{escape(heading)}</h2><p>{escape(sentence)}</p>"
            f'<figure class="{kind}">{_drawn(figure)}</figure>'
        )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"{''.join(parts)}</main></body></html>\n"
    )
    with replaced_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _drawn(figure: "Figure") -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawing = text.getvalue()
    return drawing[drawing.index("<svg") :]  # the head of a file has no place inside a page
