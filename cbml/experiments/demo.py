"""The whole house on one set of pictures: learn from some classes, search among others.

The gallery arrives as a function: this room stands beside it, not above it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.bayes import MatchProbability
from cbml.bayes.analysis import analyze_set, check_results
from cbml.data import ImageSet
from cbml.errors import BadData
from cbml.evaluation import evaluate
from cbml.experiments.demo_promises import Promises
from cbml.experiments.demo_report import Sight, by_gain, write_demo_report
from cbml.experiments.tools import TOOLS
from cbml.files import write_json
from cbml.models import Embedder, embed
from cbml.training import (
    Listener,
    Recipe,
    note_test_look,
    read_record,
    recipe_for,
    train_run,
)
from cbml.training.assembly import Shelf, build_model, flat_scores, load_splits

__all__ = ["Demonstration", "demonstrate", "reliability_of", "sight_of"]

MakeGallery = Callable[[Embedder, Path, Path], object]
Rows = NDArray[np.float32]

_RESULT = "demo.json"


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """What came out.

    Args:
        folder: run/, gallery/ and report.html are in it.
        pictures: of classes never seen in training.
        classes: how many they are.
        before: scores among them of the network as it was.
        after: scores among them of the trained network.
        pairs: moments of their pairs, before and after.
        example: the picture whose results gained most, by its number in the gallery.
        reliability: how far match probabilities hold among the first results; None where there was
            nothing to learn them from.
        reused: whether an earlier call had done all the work.
    """

    folder: Path
    pictures: int
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
            f"Among {self.pictures:,} pictures of {self.classes:,} classes never seen in training, "
            f"the nearest other picture is of the same class for {after:.1%} of them; "
            f"before the training it was {before:.1%}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return {**vars(self), "folder": str(self.folder), "sentence": self.sentence}


def demonstrate(
    folder: Path,
    *,
    make_gallery: MakeGallery,
    recipe: Recipe | None = None,
    listener: Listener | None = None,
) -> Demonstration:
    """Score a network on unseen classes, train it, score it again, analyse and show.

    What was done by an earlier call with the same recipe is not done again; an interrupted
    training goes on from its newest checkpoint.

    Args:
        folder: where everything goes.
        make_gallery: makes a gallery of the unseen pictures, numbered in their order, from the
            trained model, the run's folder and the gallery's.
        recipe: pictures, model and training; None for the emoji.
        listener: hears of every stage and step.
    """
    recipe, listener = recipe or recipe_for("emoji"), listener or Listener()
    kept = _kept(folder, recipe)
    if kept is not None:
        return kept
    run = folder / "run"
    _refuse_other_settings(run, recipe)
    listener.say(f"1 of 4: how the network sees unseen classes of {recipe.data} before training")
    splits = load_splits(recipe)
    unseen = _shelf(splits.test, recipe)
    before = sight_of(build_model(recipe), unseen)
    listener.say("2 of 4: training on the other classes")
    model = _trained(recipe, run, listener)
    listener.say("3 of 4: the unseen classes again, and the analysis")
    after = sight_of(model, unseen)
    note_test_look(run, after.scores)
    probability = _probability(run, model, splits.validation, recipe)
    promises = None if probability is None else reliability_of(probability, after, unseen)
    listener.say("4 of 4: a gallery of the unseen classes")
    make_gallery(model, run, folder / "gallery")
    found = Demonstration(
        folder=folder,
        pictures=len(unseen.images),
        classes=len(np.unique(unseen.images.known_labels)),
        before=flat_scores(before.scores),
        after=flat_scores(after.scores),
        pairs={
            "before": before.analysis.statistics.as_dict(),
            "after": after.analysis.statistics.as_dict(),
        },
        example=int(by_gain(before, after)[0]),
        reliability=None if promises is None else promises.check.as_dict(),
    )
    write_demo_report(folder / "report.html", found.sentence, unseen, before, after, promises)
    write_json(folder / _RESULT, {"recipe": recipe.as_dict(), "result": found.as_dict()})
    return found


def _kept(folder: Path, recipe: Recipe) -> Demonstration | None:
    """The result of an earlier call, if it was the same and all of it is still there."""
    try:
        record = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
        facts = {name: value for name, value in record["result"].items() if name != "sentence"}
        result = Demonstration(**{**facts, "folder": folder, "reused": True})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = (folder / "report.html").exists() and (folder / "gallery").is_dir()
    return result if whole and record.get("recipe") == _plain(recipe) else None


def _plain(recipe: Recipe) -> Any:
    return json.loads(json.dumps(recipe.as_dict()))


def _refuse_other_settings(run: Path, recipe: Recipe) -> None:
    if (run / "run.json").exists() and read_record(run).get("recipe") != _plain(recipe):
        raise BadData(f"{run}: a run with other settings; give another folder, or delete it")


def _shelf(images: ImageSet | None, recipe: Recipe) -> Shelf:
    if images is None or not len(images):
        raise BadData(f"{recipe.data}: has no classes to test on; a demonstration needs some")
    return Shelf.of(images, recipe.crop)


def sight_of(model: Embedder, shelf: Shelf) -> Sight:
    """How a model sees labelled pictures.

    Args:
        model: in evaluation mode.
        shelf: the pictures.
    """
    rows = _embedded(model, shelf)
    labels = shelf.images.known_labels
    return Sight(rows, evaluate(rows, labels), analyze_set(rows, labels))


def _embedded(model: Embedder, shelf: Shelf) -> Rows:
    """As `shelf.embedded`, with its progress shown: nobody likes a silent half minute."""
    length = model.preprocessing.resize
    return embed(model, shelf.numbers, load=lambda number: shelf.packed.sized(number, length))


def _trained(recipe: Recipe, run: Path, listener: Listener) -> Embedder:
    started = (run / "run.json").exists()
    if started and read_record(run).get("finished"):
        return Embedder.load(run / "model").eval()
    outcome = train_run(recipe, run, TOOLS, resume=started, listener=listener)
    return outcome.model.eval()


def _probability(
    run: Path, model: Embedder, held: ImageSet, recipe: Recipe
) -> MatchProbability | None:
    """Match probabilities learned from the held-out classes, kept in the run's folder."""
    path = run / "calibration.json"
    if path.is_file():
        return MatchProbability.load(path)
    try:
        shelf = Shelf.of(held, recipe.crop)
        learned = MatchProbability.fit(_embedded(model, shelf), shelf.images.known_labels)
    except BadData:  # too few pictures were held out
        return None
    learned.save(path)
    return learned


def reliability_of(probability: MatchProbability, sight: Sight, shelf: Shelf) -> Promises:
    """How far match probabilities hold in a gallery of these pictures with their labels.

    Where the labels teach the gallery's own probabilities, these cannot be checked with the same
    pictures; the check they carry is of halves of the classes, each by what the other taught.

    Args:
        probability: learned from other classes.
        sight: of the pictures.
        shelf: the pictures.
    """
    labels = shelf.images.known_labels
    ready = probability.for_gallery(sight.rows, labels)
    if ready.by_query != probability.by_query:
        return Promises(ready.check, own=True, results=ready.depth)
    return Promises(check_results(ready, sight.rows, labels)[10], own=False, results=10)
