"""analysis.html: the numbers and figures of an analysis in one file, without the network."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cbml.bayes.analysis import SetAnalysis
from cbml.files import replaced_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Table", "analysis_tables", "write_page"]

# Row (which pictures), then column (which model).
Grid = Mapping[str, Mapping[str, SetAnalysis]]

_WHICH = ("pictures", "model")
_MOMENTS = ("μ_P", "σ_P", "μ_N", "σ_N")
_FITS = ("KS P", "KS N", "log-lik P", "best P", "log-lik N", "best N")
_LOSSES = ("log loss prior", "log loss Gauss", "log loss free")
_ERRORS = ("ECE Gauss", "ECE free")
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


class Table(NamedTuple):
    """Numbers of analyses, one row for each, and what they are.

    Args:
        heads: of the columns.
        rows: a cell of text for each head.
        words: that explain the columns.
    """

    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    words: str


def analysis_tables(grid: Grid) -> list[Table]:
    """What is known of the pairs, and how far their posteriors can be believed.

    Args:
        grid: analyses by pictures and model.
    """
    cells = [(pictures, model, one) for pictures, row in grid.items() for model, one in row.items()]
    return [
        Table(
            (*_WHICH, "pairs P", "pairs N", *_MOMENTS, *_FITS),
            [(pictures, model, *_pair_cells(one)) for pictures, model, one in cells],
            "How many positive (P) and negative (N) pairs there are, mean μ and spread σ of their "
            "similarities, the largest gap between their distribution functions and Gaussians (KS),"
            " and the log-likelihood of a pair under the Gaussian, beside the best that a "
            "histogram of such steps can reach, in nats.",
        ),
        Table(
            (*_WHICH, "prior", *_LOSSES, *_ERRORS),
            [(pictures, model, *_posterior_cells(one)) for pictures, model, one in cells],
            "The share of positive pairs (prior), and posteriors of pairs, by Gaussians and by a "
            "free monotone curve, each learned from half of the classes and checked on the other. "
            "Log loss in nats per pair; the prior alone is what a posterior has to beat. The "
            "calibration error (ECE) alone says little: nearly all pairs are negative, and saying "
            "so of each of them is hardly ever wrong.",
        ),
    ]


def _pair_cells(one: SetAnalysis) -> list[str]:
    facts, fits = one.statistics, (one.positive_fit, one.negative_fit)
    numbers = [
        *(facts.positive_mean, facts.positive_std, facts.negative_mean, facts.negative_std),
        *(fit.distance for fit in fits),
        *(number for fit in fits for number in (fit.log_likelihood, fit.best_log_likelihood)),
    ]
    counts = (facts.positive_pairs, facts.negative_pairs)
    return [*(f"{count:,}" for count in counts), *(f"{number:.3f}" for number in numbers)]


def _posterior_cells(one: SetAnalysis) -> list[str]:
    odds, checks = one.statistics.prior_odds, one.posteriors
    losses, errors = (
        [f"{getattr(checks[name], kind):.5f}" if name in checks else "–" for name in names]
        for kind, names in (
            ("log_loss", ("prior", "gaussian", "monotone")),
            ("ece", ("gaussian", "monotone")),
        )
    )
    return [f"{odds / (1.0 + odds):.5f}", *losses, *errors]


def write_page(
    path: Path,
    title: str,
    tables: Sequence[Table],
    figures: Mapping[str, tuple[str, "Figure"]],
) -> None:
    """Write one self-contained page.

    Args:
        path: of the file.
        title: the run's name.
        tables: of the numbers.
        figures: heading -> a sentence about it and the drawing.
    """
    parts = [f"<h1>{escape(title)}</h1>", *map(_written, tables)]
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


def _written(table: Table) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f'<div class="scroll"><table><tr>{heads}</tr>{lines}</table></div>'
        f"<p>{escape(table.words)}</p>"
    )


def _drawn(figure: "Figure") -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawing = text.getvalue()
    return drawing[drawing.index("<svg") :]  # the head of a file has no place inside a page
