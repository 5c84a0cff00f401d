"""Everything on one dataset: learn from some classes, search among others. `cbml demo`.

The gallery arrives as a function: it stands beside this package, not below it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.bayes import MatchProbability, Reliability, SetAnalysis, analyze_set, check_results
from cbml.data import ImageDataset, PackedDataset
from cbml.errors import BadData
from cbml.evaluation import Scores, evaluate
from cbml.files import write_json
from cbml.models import Embedder
from cbml.program import command
from cbml.progress import reporter
from cbml.regular import read_text
from cbml.report import Table, write_page
from cbml.runs.build import build_model, load_splits
from cbml.runs.compare import as_recorded
from cbml.runs.config import RunConfig
from cbml.runs.evaluate import note_test_evaluation
from cbml.runs.folder import recorded_config, run_calibration
from cbml.runs.parameters import with_chosen_parameters
from cbml.runs.planning import with_crop
from cbml.runs.queries import before_and_after, by_gain
from cbml.runs.report import pair_histogram
from cbml.runs.runner import trained_model
from cbml.training import Callback, embed_dataset

MakeGallery = Callable[[Embedder, Path, Path], object]

_RESULT = "demo.json"

Embeddings = NDArray[np.float32]


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


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """The result of the demo.

    Args:
        folder: Run/, gallery/ and report.html are in it.
        images: Images of classes never seen in training.
        classes: How many they are.
        before: Scores among them of the network as it was.
        after: Scores among them of the trained network.
        pairs: Moments of their pairs, before and after.
        example: The image whose results gained most, by its number in the gallery.
        reliability: How far match probabilities hold among the first results; None where there was
            nothing to fit them to.
        reused: Whether an earlier call had done all the work.
    """

    folder: Path
    images: int
    classes: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    pairs: Mapping[str, Mapping[str, float]]
    example: int
    reliability: Mapping[str, Any] | None
    reused: bool = False

    @property
    def sentence(self) -> str:
        """What was learned."""
        before, after = self.before["recall@1"], self.after["recall@1"]
        return (
            f"Among {self.images:,} images of {self.classes:,} classes never seen in training, "
            f"the nearest other image is of the same class for {after:.1%} of them; "
            f"before the training it was {before:.1%}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return {**vars(self), "folder": str(self.folder), "sentence": self.sentence}


def demonstrate(
    folder: Path,
    *,
    make_gallery: MakeGallery,
    config: RunConfig | None = None,
    callback: Callback | None = None,
) -> Demonstration:
    """Score a network on unseen classes, train it, score it again, analyze and show.

    What was done by an earlier call with the same config is not done again; an interrupted
    training resumes from its newest checkpoint.

    Args:
        folder: Where everything goes.
        make_gallery: Makes a gallery of the unseen images, numbered in their order, from the
            trained model, the run's folder and the gallery's.
        config: Images, model and training; None for the emoji.
        callback: Notified of every stage and step.
    """
    config, callback = with_crop(config or RunConfig("emoji")), callback or Callback()
    config = with_chosen_parameters(config)
    kept = _kept(folder, config)
    if kept is not None:
        return kept
    run = folder / "run"
    _refuse_other_settings(run, config)
    callback.on_message(
        f"1 of 4: how the network sees unseen classes of {config.data.source} before training"
    )
    splits = load_splits(config)
    unseen = _dataset(splits.test, config)
    before = view_of(build_model(config), unseen)
    callback.on_message("2 of 4: training on the other classes")
    model = trained_model(config, run, callback)
    callback.on_message("3 of 4: the unseen classes again, and the analysis")
    after = view_of(model, unseen)
    note_test_evaluation(run, after.scores, start=before.scores)
    probability = run_calibration(run)
    calibration_check = None if probability is None else reliability_of(probability, after, unseen)
    callback.on_message("4 of 4: a gallery of the unseen classes")
    make_gallery(model, run, folder / "gallery")
    found = Demonstration(
        folder=folder,
        images=len(unseen.images),
        classes=len(np.unique(unseen.images.known_labels)),
        before=before.scores.metrics,
        after=after.scores.metrics,
        pairs={
            "before": before.analysis.statistics.as_dict(),
            "after": after.analysis.statistics.as_dict(),
        },
        example=int(by_gain(before.scores, after.scores)[0]),
        reliability=None if calibration_check is None else calibration_check.check.as_dict(),
    )
    write_demo_report(
        folder / "report.html", found.sentence, unseen, before, after, calibration_check
    )
    write_json(folder / _RESULT, {"config": config.as_dict(), "result": found.as_dict()})
    return found


def _kept(folder: Path, config: RunConfig) -> Demonstration | None:
    """The result of an earlier call, if it was the same and all of it is still there."""
    try:
        record = json.loads(read_text(folder / _RESULT))
        fields = {name: value for name, value in record["result"].items() if name != "sentence"}
        result = Demonstration(**{**fields, "folder": folder, "reused": True})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = (folder / "report.html").exists() and (folder / "gallery").is_dir()
    return result if whole and record.get("config") == _plain(config) else None


def _plain(config: RunConfig) -> Any:
    return json.loads(json.dumps(config.as_dict()))


def _refuse_other_settings(run: Path, config: RunConfig) -> None:
    if (run / "run.json").exists() and recorded_config(run) != as_recorded(run, config):
        raise BadData(f"{run}: a run with other settings; give another folder, or delete it")


def _dataset(images: ImageDataset | None, config: RunConfig) -> PackedDataset:
    if images is None or not len(images):
        raise BadData(f"{config.data.source}: a demonstration needs classes to test on")
    return PackedDataset.of(images, config.test_crop)


def view_of(model: Embedder, dataset: PackedDataset) -> View:
    """How a model sees labeled images.

    Args:
        model: The model, in evaluation mode.
        dataset: The images.
    """
    # With its progress shown: nobody likes a silent half minute.
    embeddings = embed_dataset(model, dataset, None, reporter("images embedded"))
    labels = dataset.images.known_labels
    return View(embeddings, evaluate(embeddings, labels), analyze_set(embeddings, labels))


def reliability_of(
    probability: MatchProbability, view: View, dataset: PackedDataset
) -> CalibrationCheck:
    """How far match probabilities hold in a gallery of these images with their labels.

    Where the gallery's own probabilities are fitted to the labels, the same images cannot check
    them; the check they carry is of halves of the classes, each by a fit to the other.

    Args:
        probability: Fitted to other classes.
        view: What a model makes of the images.
        dataset: The images.
    """
    labels = dataset.images.known_labels
    ready = probability.for_gallery(view.embeddings, labels)
    if ready.odds != probability.odds:
        return CalibrationCheck(ready.check, own=True, results=ready.depth)
    return CalibrationCheck(
        check_results(ready, view.embeddings, labels)[10], own=False, results=10
    )


# The page of a demonstration.


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
    gained = by_gain(before.scores, after.scores)
    random = np.random.default_rng(0).permutation(np.sort(gained))
    queries = [
        (title, before_and_after(dataset, before.embeddings, after.embeddings, order))
        for title, order in (
            ("Gained most", gained),
            ("Drawn at random", random),
            ("Lost most", gained[::-1]),
        )
    ]
    gallery = path.parent / "gallery"
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
            command("serve", gallery, "--open"),
            command("search", gallery, "--id", int(gained[0])),
            command("train", "my-images/"),
        ),
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
