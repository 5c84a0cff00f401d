"""What the pages of a run show: its report, and the analysis of its similarities."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from cbml.bayes import PairHistogram, PairStatistics, Reliability, SetAnalysis
from cbml.data import ImageDataset, PackedDataset, Splits
from cbml.errors import BadData, DamagedFile, MissingExtra
from cbml.evaluation import Scores, evaluate
from cbml.models import Embedder
from cbml.program import command
from cbml.report import (
    QueryTiles,
    Series,
    Table,
    histogram_chart,
    ratio_chart,
    reliability_chart,
    write_page,
    write_run_page,
)
from cbml.runs.build import build_model
from cbml.runs.folder import images_to_index, recorded_config, run_calibration
from cbml.runs.queries import before_and_after, by_gain, worst_and_best
from cbml.training import Callback, embed_dataset, read_metrics, read_record

# Enough for smooth histograms; all pairs of them fit into a few dozen megabytes.
_IMAGES = 1500
_CLASSES = 40

Indices = NDArray[np.int64]
Embeddings = NDArray[np.float32]


def report_run(
    folder: Path, model: Embedder, splits: Splits, callback: Callback | None = None
) -> None:
    """Write report.html with images of training classes and of unseen ones.

    Unseen are the held-out classes; the test classes are shown as well once the run's record says
    that they were evaluated.
    """
    record, callback = read_record(folder), callback or Callback()
    shared = record.get("data", {}).get("shared_classes")
    unseen = "new images of known classes" if shared else "unseen classes"
    labeled = record.get("config", {}).get("data", {}).get("labels", "known") == "known"
    trained = "training classes" if labeled else "clusters of the training images"
    parts = [(trained, splits.train), (f"{unseen}, held out", splits.validation)]
    test = splits.query if splits.test is None else splits.test
    if test is not None and record.get("test_evaluations"):
        parts.append((f"{unseen}, test", test))
    histograms, queries, classes, shown_last = [], [], None, None
    for title, images in parts:
        if len(images) < 2:
            continue
        read = callback.progress("images read for the report")
        dataset = PackedDataset.of(_some_classes(images), model.preprocessing.crop, read)
        shown = callback.progress("images embedded for the report")
        embeddings, labels = embed_dataset(model, dataset, None, shown), dataset.images.known_labels
        with contextlib.suppress(BadData):  # no two images of a class, or one class alone
            statistics = PairStatistics.of(embeddings, labels)
            pairs = PairHistogram.of(embeddings, labels)
            histograms.append(pair_histogram(title, pairs, statistics))
        queries = [
            (f"{kind} queries among {title}", tiles)
            for kind, tiles in worst_and_best(dataset, embeddings).items()
        ]
        shown_last = title, dataset, embeddings
        if len(dataset.images.class_names) > 1:
            classes = _class_table(title, dataset, embeddings)
    calibration, note = _calibration(folder, record)
    gallery = folder / "gallery"
    write_run_page(
        folder / "report.html",
        record,
        read_metrics(folder),
        histograms=histograms,
        gained=_gained(folder, *shown_last) if shown_last else None,
        queries=queries,
        classes=classes,
        calibration=calibration,
        calibration_note=note,
        next_commands=(
            command("index", folder, *images_to_index(recorded_config(folder)), "--out", gallery),
            command("serve", gallery, "--open"),
            command("analyze", folder),
        ),
    )


def _gained(
    folder: Path, title: str, dataset: PackedDataset, after: Embeddings
) -> tuple[str, list[tuple[QueryTiles, QueryTiles]]] | None:
    """Queries whose results gained most by the training; None where the start cannot be had."""
    labels = dataset.images.known_labels
    try:
        config = recorded_config(folder)
        if config.method.name is not None or config.data.labels != "known":
            return None  # methods change the model before the first step
        before = embed_dataset(build_model(config).eval(), dataset)
        scores = [evaluate(each, labels, clustering=False) for each in (before, after)]
    except (BadData, MissingExtra, OSError):
        return None
    pairs = before_and_after(dataset, before, after, by_gain(scores[0], scores[1]))
    return f"Queries that gained most among {title}", pairs


def _some_classes(images: ImageDataset) -> ImageDataset:
    """Whole classes in a fixed random order, as many as fit; parts of two where they do not.

    All pairs of these images are looked at, in memory that grows with the square of their number.
    """
    if len(images) <= _IMAGES:
        return images
    sizes = images.class_sizes()
    order = np.random.default_rng(0).permutation(len(sizes))
    count = max(2, int((np.cumsum(sizes[order]) <= _IMAGES).sum()))
    chosen = images.of_classes(np.sort(order[:count]))
    every = -(-len(chosen) // _IMAGES)
    return chosen.subset(np.arange(0, len(chosen), every)) if every > 1 else chosen


def class_scores(scores: Scores, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Recall@1 and MAP@R of each class, the worst first.

    Args:
        names: Names of the classes, where their labels are numbers.
    """
    found: dict[str, dict[str, float]] = {}
    for metric in ("recall@1", "map@r"):
        for label, value in scores.per_class(metric).items():
            name = label if isinstance(label, str) else names[int(label)]
            found.setdefault(name, {})[metric] = value
    return dict(sorted(found.items(), key=lambda item: (item[1]["recall@1"], item[1]["map@r"])))


def _class_table(title: str, dataset: PackedDataset, embeddings: Embeddings) -> Table | None:
    """The classes of the last part that is shown, the worst first."""
    labels, names = dataset.images.known_labels, dataset.images.class_names
    if not (np.bincount(labels) > 1).any():
        return None
    scores = evaluate(embeddings, labels, metrics=("recall@k", "map@r"), clustering=False)
    sizes = dict(zip(names, np.bincount(labels, minlength=len(names)).tolist(), strict=True))
    rows = [
        (name, str(sizes[name]), f"{found['recall@1']:.1%}", f"{found['map@r']:.1%}")
        for name, found in class_scores(scores, names).items()
    ]
    note = f"Among {title}" + (f"; the {_CLASSES} worst of {len(rows):,}" * (len(rows) > _CLASSES))
    return Table(("class", "images", "Recall@1", "MAP@R"), rows[:_CLASSES], note=f"{note}.")


def _calibration(folder: Path, record: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The check of a run's calibration and what to know about it, or why there is none to show."""
    try:
        probability = run_calibration(folder)
    except (DamagedFile, OSError):
        return None, f"calibration.json is damaged; write it again with {command('analyze')}."
    if probability is None:
        return None, ""
    return probability.check.as_dict(), _unlike_test(probability.own_positives + 1.0, record)


def _unlike_test(expected: float, record: Mapping[str, Any]) -> str:
    """A sentence where test classes are of another size than probabilities expect."""
    counts = record.get("data", {}).get("counts", {}).get("test", {})
    tested = counts["images"] / counts["classes"] if counts.get("classes") else 0.0
    alike = max(expected, tested) <= 2 * min(expected, tested)
    if alike or not tested or "test_reliability" not in record:
        return ""
    found = "more" if tested > expected else "fewer"
    return (
        f"The probabilities expect about {expected:.0f} images of a class; the test has about "
        f"{tested:.0f}, so that a search finds {found} than they expect. {command('index')} fits "
        "them again to a gallery that has labels."
    )


# analysis.html: one sentence, the charts, then the numbers of an analysis.

# By images, then by model.
Grid = Mapping[str, Mapping[str, SetAnalysis]]

_BINS = 100
# A ratio of fewer pairs than this on either side is noise.
_FEWEST_PAIRS = 5
_TELLING_BINS = 5  # with fewer, the axis is that of the Gaussians
_MOMENTS = ("μ_P", "σ_P", "μ_N", "σ_N")
_FITS = ("KS P", "KS N", "log-lik P", "best P", "log-lik N", "best N")
_LOSSES = ("log loss prior", "log loss Gauss", "log loss free")
_ERRORS = ("ECE Gauss", "ECE free")


def write_analysis_page(
    path: Path, title: str, grid: Grid, reliability: Mapping[str, Reliability]
) -> None:
    """Write the page of an analysis."""
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


def pair_histogram(name: str, histogram: PairHistogram, statistics: PairStatistics) -> Markup:
    """The similarities of positive and negative pairs, and Gaussians of the same moments."""
    coarse = histogram.coarser(_BINS)
    kinds = (coarse.positive, coarse.negative)
    # Below lies a thousandth of the pairs of each kind.
    low = min(int(np.searchsorted(np.cumsum(one), one.sum() / 1000)) for one in kinds)
    edges = [float(edge) for edge in coarse.edges[low:]]
    shares = [(counts[low:] / max(int(counts.sum()), 1)).tolist() for counts in kinds]
    moments: list[tuple[Literal["positive", "negative"], float, float]] = [
        ("positive", statistics.positive_mean, statistics.positive_std),
        ("negative", statistics.negative_mean, statistics.negative_std),
    ]
    lines = [
        Series(_gauss(edges, mean, std), kind, "dashed") for kind, mean, std in moments if std > 0
    ]
    means = (statistics.positive_mean, statistics.negative_mean)
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
    enough = (coarse.positive >= _FEWEST_PAIRS) & (coarse.negative >= _FEWEST_PAIRS)
    positive, negative = (c / max(c.sum(), 1) for c in (coarse.positive, coarse.negative))
    logs = np.log10(positive[enough] / negative[enough])
    counted = list(zip(coarse.centers[enough].tolist(), logs.tolist(), strict=True))
    statistics = one.statistics
    low = max(statistics.negative_mean - 2.0 * statistics.negative_std, -1.0)
    high = min(statistics.positive_mean + 2.0 * statistics.positive_std, 1.0)
    if len(counted) >= _TELLING_BINS:
        low, high = counted[0][0], counted[-1][0]
    exponents: list[tuple[Literal["linear", "quadratic"], Literal["positive", "negative"]]] = [
        ("linear", "positive"),
        ("quadratic", "negative"),
    ]
    lines = []
    for exponent, color in exponents:
        try:
            quadratic, slope, constant = statistics.ratio(exponent).negative
        except BadData:
            continue  # the classes are not told apart, or hardly spread: nothing to draw
        points = [
            (float(s), ((quadratic * s + slope) * s + constant) / math.log(10.0))
            for s in np.linspace(low, high, 100)
        ]
        lines.append(Series(points, color, "line", exponent))
    return ratio_chart(name, counted, lines, (low, high))


def _pair_cells(one: SetAnalysis) -> list[str]:
    statistics, fits = one.statistics, (one.positive_fit, one.negative_fit)
    numbers = [
        *(
            statistics.positive_mean,
            statistics.positive_std,
            statistics.negative_mean,
            statistics.negative_std,
        ),
        *(fit.distance for fit in fits),
        *(number for fit in fits for number in (fit.log_likelihood, fit.best_log_likelihood)),
    ]
    counts = (statistics.positive_pairs, statistics.negative_pairs)
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
