"""What the pages of a run and of a demo show: queries, pairs, scores before and after."""

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.bayes import PairHistogram, PairStatistics, Reliability, SetAnalysis
from cbml.data import ImageDataset, PackedDataset, Splits
from cbml.errors import BadData, DamagedFile
from cbml.evaluation import Scores, evaluate
from cbml.models import Embedder
from cbml.report import (
    QueryTiles,
    Table,
    Tile,
    neighbor_tile,
    thumbnail,
    write_page,
    write_run_page,
)
from cbml.runs.analysis_page import pair_histogram
from cbml.runs.folder import images_to_index, recorded_config, run_calibration
from cbml.training import Callback, embed_dataset, read_metrics, read_record

# Enough for smooth histograms; all pairs of them fit into a few dozen megabytes.
_IMAGES = 1500
_QUERIES = 6
_DEMO_QUERIES = 4
_NEIGHBORS, _FEWEST = 8, 3
_SIDE = 72
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
    shared = splits.record.get("shared_classes")
    unseen = "new images of known classes" if shared else "unseen classes"
    parts = [("training classes", splits.train), (f"{unseen}, held out", splits.validation)]
    test = splits.query if splits.test is None else splits.test
    if test is not None and record.get("test_evaluations"):
        parts.append((f"{unseen}, test", test))
    histograms, queries, classes = [], [], None
    for title, images in parts:
        if len(images) < 2:
            continue
        read = callback.progress("images read for the report")
        dataset = PackedDataset.of(_some_classes(images), model.preprocessing.crop, read)
        shown = callback.progress("images embedded for the report")
        embeddings, labels = embed_dataset(model, dataset, None, shown), dataset.images.known_labels
        with contextlib.suppress(BadData):  # no two images of a class, or one class alone
            facts = PairStatistics.of(embeddings, labels)
            pairs = PairHistogram.of(embeddings, labels)
            histograms.append(pair_histogram(title, pairs, facts))
        queries = [
            (f"{kind} queries among {title}", tiles)
            for kind, tiles in _extremes(dataset, embeddings).items()
        ]
        if len(dataset.images.class_names) > 1:
            classes = _class_table(title, dataset, embeddings)
    calibration, note = _calibration(folder, record)
    name = shlex.quote(str(folder))
    write_run_page(
        folder / "report.html",
        record,
        read_metrics(folder),
        histograms=histograms,
        queries=queries,
        classes=classes,
        calibration=calibration,
        calibration_note=note,
        next_commands=(
            f"cbml index {name} {images_to_index(recorded_config(folder))} --out gallery",
            "cbml serve gallery --open",
            f"cbml analyze {name}",
        ),
    )


@dataclass(frozen=True)
class CalibrationCheck:
    """How far the match probabilities of a gallery can be trusted.

    Args:
        check: On classes to which the checked probabilities were not fitted.
        own: Whether they were fitted to the gallery's own labels, so that halves of its classes
            checked each other; else to held-out classes, and all of its classes check them.
        results: How many results of each search were checked.
    """

    check: Reliability
    own: bool
    results: int

    @property
    def sentence(self) -> str:
        """What was fitted to what, and checked on what."""
        if self.own:
            fitted = (
                "This gallery has labels, and its probabilities were fitted to them. Its classes "
                "were cut into two halves, each checked with what was fitted to the other"
            )
        else:
            fitted = "They were fitted to held-out classes and are checked here on unseen ones"
        return f"{fitted}, among the first {self.results} results of every search."


@dataclass(frozen=True, eq=False)
class View:
    """What one model makes of a dataset.

    Args:
        embeddings: Unit vectors. (N, D)
        scores: Scores of every image as a query among the others.
        analysis: Analysis of all pairs.
    """

    embeddings: Embeddings
    scores: Scores
    analysis: SetAnalysis


def write_demo_report(
    path: Path,
    sentence: str,
    dataset: PackedDataset,
    before: View,
    after: View,
    calibration: CalibrationCheck | None,
) -> None:
    """Write the page of a demo: scores, the same queries before and after, the analysis.

    Args:
        path: The file to create or replace.
        sentence: What was learned.
        dataset: The images.
        before: What the untrained model makes of them.
        after: What the trained model makes of them.
        calibration: Calibration of the gallery's match probabilities; None where there are none.
    """
    gained = by_gain(before, after)
    random = np.random.default_rng(0).permutation(np.sort(gained))
    labels = dataset.images.known_labels
    queries = [
        (
            title,
            [
                (
                    query_tiles(dataset, before.embeddings, query),
                    query_tiles(dataset, after.embeddings, query),
                )
                for query in _one_per_class(order, labels, _DEMO_QUERIES)
            ],
        )
        for title, order in (
            ("Gained most", gained),
            ("Drawn at random", random),
            ("Lost most", gained[::-1]),
        )
    ]
    gallery = shlex.quote(str(path.parent / "gallery"))
    write_page(
        path,
        "demo.html",
        title="What the network learned",
        sentence=sentence,
        scores=_gains(before.scores, after.scores),
        queries=queries,
        separation=_separation_text(before.analysis, after.analysis),
        histograms=[
            pair_histogram(title, view.analysis.histogram, view.analysis.statistics)
            for title, view in (("before", before), ("after", after))
        ],
        calibration=None if calibration is None else _calibration_table(calibration),
        next_commands=(
            f"cbml serve {gallery} --open",
            f"cbml search {gallery} --id {int(gained[0])}",
            "cbml train my-images/",
        ),
    )


def by_gain(before: View, after: View) -> Indices:
    """The queries that have something to find, those first whose results gained most.

    Args:
        before: What the untrained model makes of the images.
    """
    old, new = before.scores.per_query["map@r"], after.scores.per_query["map@r"]
    queries = np.flatnonzero(after.scores.positives > 0)
    return queries[np.argsort((old - new)[queries], kind="stable")]


def query_tiles(dataset: PackedDataset, embeddings: Embeddings, query: int) -> QueryTiles:
    """A query and its nearest images, relevant or not.

    Args:
        embeddings: Their unit vectors. (N, D)
    """
    labels, names = dataset.images.known_labels, dataset.images.class_names
    same = labels == labels[query]
    # Past the last relevant image all are irrelevant, and nobody is to blame for it.
    count = min(_NEIGHBORS, max(_FEWEST, int(same.sum()) - 1))
    similarity = embeddings @ embeddings[query]
    similarity[query] = -np.inf
    nearest = np.argsort(-similarity, kind="stable")[:count].tolist()

    def image(index: int) -> str:
        side = min(2 * _SIDE, dataset.packed.short_side)
        return thumbnail(dataset.packed.sized(dataset.indices[index], side), _SIDE)

    return QueryTiles(
        Tile(image(query), names[labels[query]], "query", "query"),
        [
            neighbor_tile(
                image(other), names[labels[other]], float(similarity[other]), bool(same[other])
            )
            for other in nearest
            if other != query
        ],
    )


def _some_classes(images: ImageDataset) -> ImageDataset:
    """Whole classes in a fixed random order, as many as fit."""
    sizes = images.class_sizes()
    order = np.random.default_rng(0).permutation(len(sizes))
    count = max(2, int((np.cumsum(sizes[order]) <= _IMAGES).sum()))
    return images if len(images) <= _IMAGES else images.of_classes(np.sort(order[:count]))


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


def _extremes(dataset: PackedDataset, embeddings: Embeddings) -> dict[str, list[QueryTiles]]:
    """Queries whose nearest relevant image is furthest behind the nearest irrelevant one, and
    those where it is furthest ahead."""
    labels = dataset.images.known_labels
    similarity = embeddings @ embeddings.T  # (N, N)
    np.fill_diagonal(similarity, -np.inf)
    same = labels[:, None] == labels[None, :]
    np.fill_diagonal(same, False)
    queries = np.flatnonzero(same.any(axis=1))
    relevant = np.where(same, similarity, -np.inf).max(axis=1)[queries]
    irrelevant = np.where(same, -np.inf, similarity).max(axis=1)[queries]
    order = queries[np.argsort(relevant - irrelevant, kind="stable")]
    return {
        kind: [
            query_tiles(dataset, embeddings, query)
            for query in _one_per_class(chosen, labels, _QUERIES)
        ]
        for kind, chosen in (("Worst", order), ("Best", order[::-1]))
    }


def _one_per_class(order: Indices, labels: Indices, count: int) -> Sequence[int]:
    """The first few queries whose classes differ: near copies of one query tell nothing new."""
    first = np.sort(np.unique(labels[order], return_index=True)[1])
    chosen: list[int] = order[first][:count].tolist()
    return chosen


def _calibration(folder: Path, record: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The check of a run's calibration and what to know about it, or why there is none to show."""
    try:
        probability = run_calibration(folder)
    except DamagedFile:
        return None, "calibration.json is damaged; write it again with cbml analyze."
    if probability is None:
        return None, ""
    return probability.check.as_dict(), _unlike_test(record)


def _unlike_test(record: Mapping[str, Any]) -> str:
    """A sentence where test classes are of another size than those of the calibration."""
    counts = record.get("data", {}).get("counts", {})
    held, tested = (
        counts[name]["images"] / counts[name]["classes"]
        if counts.get(name, {}).get("classes")
        else 0.0
        for name in ("validation", "test")
    )
    alike = max(held, tested) <= 2 * min(held, tested)
    if alike or not (held and tested) or "test_reliability" not in record:
        return ""
    found = "more" if tested > held else "fewer"
    return (
        f"The probabilities were fitted to held-out classes of about {held:.0f} images each; the "
        f"test classes have about {tested:.0f}, so that a search finds {found} than they expect. "
        "cbml index fits them again to a gallery that has labels."
    )


def _gains(before: Scores, after: Scores) -> Table:
    names = {f"Recall@{k}": f"recall@{k}" for k in (1, 2, 4, 8)} | {"MAP@R": "map@r", "NMI": "nmi"}
    rows = []
    for title, name in names.items():
        old, new = before.metrics.get(name), after.metrics.get(name)
        if old is not None and new is not None:
            rows.append((title, f"{old:.1%}", f"{new:.1%}", f"{100 * (new - old):+.1f}"))
    return Table(("", "before", "after", "points"), rows)


def _separation_text(before: SetAnalysis, after: SetAnalysis) -> str:
    return (
        "CBML models the similarities of positive and of negative pairs by a Gaussian each, and "
        "pushes pairs by the posterior probability that follows. Separation is the distance of the "
        f"two means in units of their spread: {before.statistics.separation:.2f} before, "
        f"{after.statistics.separation:.2f} after."
    )


def _calibration_table(one: CalibrationCheck) -> Table:
    check = one.check
    rows = [
        (f"{count:,} results", f"{confidence:.0%}", f"{accuracy:.0%}")
        for count, confidence, accuracy in zip(
            check.counts, check.confidence, check.accuracy, strict=True
        )
    ]
    note = f"{one.sentence} Mean gap between confidence and accuracy: {check.ece:.1%}."
    return Table(("", "confidence", "accuracy"), rows, note=note)
