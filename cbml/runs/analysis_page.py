"""analysis.html: one sentence, the charts, then the numbers of an analysis."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from markupsafe import Markup

from cbml.bayes import PairHistogram, PairStatistics, Reliability, SetAnalysis
from cbml.errors import BadData
from cbml.report import (
    Series,
    Table,
    histogram_chart,
    ratio_chart,
    reliability_chart,
    write_page,
)

# By images, then by model.
Grid = Mapping[str, Mapping[str, SetAnalysis]]

_BINS = 100
# A ratio of fewer pairs than this on either side is noise.
_FEWEST = 5
_MOMENTS = ("μ_P", "σ_P", "μ_N", "σ_N")
_FITS = ("KS P", "KS N", "log-lik P", "best P", "log-lik N", "best N")
_LOSSES = ("log loss prior", "log loss Gauss", "log loss free")
_ERRORS = ("ECE Gauss", "ECE free")


def write_analysis_page(
    path: Path, title: str, grid: Grid, reliability: Mapping[str, Reliability]
) -> None:
    """Write the page of an analysis.

    Args:
        reliability: How far match probabilities hold, by where they were checked.
    """
    cells = [
        (f"{images}, {model}", one) for images, row in grid.items() for model, one in row.items()
    ]
    figures = [
        (
            "Similarities of pairs",
            "How similar the pairs of one class and of two classes are. Dashed: Gaussians of the "
            "same mean and spread.",
            [pair_histogram(name, one.histogram, one.statistics) for name, one in cells],
        ),
        (
            "Likelihood ratio",
            "log₁₀ of how many times more often a similarity occurs in pairs of one class: "
            "counted, and by the linear and the quadratic exponent.",
            [_ratios(name, one) for name, one in cells],
        ),
    ]
    if reliability:
        figures.append(
            (
                "Match probabilities",
                "How often search results were relevant, by the probability given for them; the "
                "larger a point, the more results.",
                [
                    reliability_chart(
                        f"{name}: ECE {one.ece:.3f}", one.confidence, one.accuracy, one.counts
                    )
                    for name, one in reliability.items()
                ],
            )
        )
    write_page(
        path,
        "analysis.html",
        title=title,
        sentence=_sentence(grid),
        figures=figures,
        tables=analysis_tables(grid),
    )


def analysis_tables(grid: Grid) -> list[Table]:
    """What is known of the pairs, and how far their posteriors can be trusted.

    Args:
        grid: Analyses by images and model.
    """
    cells = [(images, model, one) for images, row in grid.items() for model, one in row.items()]
    return [
        Table(
            ("images", "model", "pairs P", "pairs N", *_MOMENTS, *_FITS),
            [(images, model, *_pair_cells(one)) for images, model, one in cells],
            "How many positive (P) and negative (N) pairs there are, mean μ and spread σ of their "
            "similarities, the largest gap between their distribution functions and Gaussians (KS),"
            " and the log-likelihood of a pair under the Gaussian, beside the best that a "
            "histogram of such steps can reach, in nats.",
            "Pairs",
        ),
        Table(
            ("images", "model", "prior", *_LOSSES, *_ERRORS),
            [(images, model, *_posterior_cells(one)) for images, model, one in cells],
            "The share of positive pairs (prior), and posteriors of pairs, by Gaussians and by a "
            "free monotone curve, each fitted to half of the classes and checked on the other. "
            "Log loss in nats per pair; the prior alone is what a posterior has to beat. The "
            "calibration error (ECE) alone says little: nearly all pairs are negative, and saying "
            "so of each of them is hardly ever wrong.",
            "Posteriors",
        ),
    ]


def _sentence(grid: Grid) -> str:
    """How far training moved the classes apart, on the last of the images."""
    images, row = list(grid.items())[-1]
    (first, start), *others = row.items()
    parts = [f"{start.statistics.separation:.2f} standard deviations apart {first} training"]
    parts += [f"{one.statistics.separation:.2f} {model}" for model, one in others]
    return (
        f"Among {images} images, the mean similarities of positive and negative pairs are "
        f"{', '.join(parts)}."
    )


def pair_histogram(name: str, histogram: PairHistogram, facts: PairStatistics) -> Markup:
    """The similarities of positive and negative pairs, and Gaussians of the same moments."""
    coarse = histogram.coarser(_BINS)
    kinds = (coarse.positive, coarse.negative)
    # Below lies a thousandth of the pairs of each kind.
    low = min(int(np.searchsorted(np.cumsum(one), one.sum() / 1000)) for one in kinds)
    edges = [float(edge) for edge in coarse.edges[low:]]
    shares = [(counts[low:] / max(int(counts.sum()), 1)).tolist() for counts in kinds]
    moments: list[tuple[Literal["positive", "negative"], float, float]] = [
        ("positive", facts.positive_mean, facts.positive_std),
        ("negative", facts.negative_mean, facts.negative_std),
    ]
    lines = [
        Series(_gauss(edges, mean, std), kind, "dashed") for kind, mean, std in moments if std > 0
    ]
    means = (facts.positive_mean, facts.negative_mean)
    return histogram_chart(name, edges, shares[0], shares[1], means, lines)


def _gauss(edges: list[float], mean: float, std: float) -> list[tuple[float, float]]:
    """The share of a Gaussian in a bin around each point."""
    width = edges[1] - edges[0]
    scale = width / (std * math.sqrt(2.0 * math.pi))
    return [
        (float(s), scale * math.exp(-(((s - mean) / std) ** 2) / 2.0))
        for s in np.linspace(edges[0], edges[-1], 200)
    ]


def _ratios(name: str, one: SetAnalysis) -> Markup:
    coarse = one.histogram.coarser(_BINS)
    enough = (coarse.positive >= _FEWEST) & (coarse.negative >= _FEWEST)
    positive, negative = (c / max(c.sum(), 1) for c in (coarse.positive, coarse.negative))
    logs = np.log10(positive[enough] / negative[enough])
    counted = list(zip(coarse.centers[enough].tolist(), logs.tolist(), strict=True))
    low, high = (counted[0][0], counted[-1][0]) if len(counted) > 1 else (-1.0, 1.0)
    exponents: list[tuple[Literal["linear", "quadratic"], Literal["positive", "negative"]]] = [
        ("linear", "positive"),
        ("quadratic", "negative"),
    ]
    lines = []
    for exponent, color in exponents:
        try:
            quadratic, slope, constant = one.statistics.ratio(exponent).negative
        except BadData:
            continue  # the classes are not told apart, or hardly spread: nothing to draw
        points = [
            (float(s), ((quadratic * s + slope) * s + constant) / math.log(10.0))
            for s in np.linspace(low, high, 100)
        ]
        lines.append(Series(points, color, "line", exponent))
    return ratio_chart(name, counted, lines, (low, high))


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
