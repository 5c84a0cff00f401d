"""A whole run from a recipe: train, choose by validation, and, only if asked, look at the test."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cbml.data import Batches, ClassBalancedSampler, ImageSet, Splits
from cbml.errors import BadData
from cbml.files import write_json
from cbml.models import Embedder
from cbml.training.assembly import (
    Shelf,
    build_batches,
    build_execution,
    build_model,
    flat_scores,
    load_splits,
)
from cbml.training.loop import Fitted, fit
from cbml.training.measured import (
    check_parameters,
    estimate_parameters,
    kept_parameters,
    with_parameters,
)
from cbml.training.progress import Listener, Shown
from cbml.training.recipe import CLASSES_PER_BATCH, PICTURES_PER_CLASS, Recipe
from cbml.training.runs import Run
from cbml.training.scoring import note_test_look, score_split
from cbml.training.team import Team
from cbml.training.tools import Tools
from cbml.training.views import report_run

__all__ = ["Outcome", "train_run"]

Load = Callable[[Recipe], Splits]


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Args:
        fitted: of the loop.
        model: the trained one.
        splits: the pictures.
        test: scores on the test classes; None if they were not looked at.
    """

    fitted: Fitted
    model: Embedder
    splits: Splits
    test: Mapping[str, float] | None


def train_run(
    recipe: Recipe,
    folder: Path,
    tools: Tools,
    *,
    resume: bool = False,
    test: bool = False,
    team: Team | None = None,
    listener: Listener | None = None,
    load: Load = load_splits,
) -> Outcome:
    """Do what a recipe says, with all records in one folder.

    Args:
        recipe: every choice.
        folder: of the run.
        tools: makes the loss, scores; constants are estimated once and kept in run.json.
        resume: go on from the newest checkpoint.
        test: look at the test classes when all is done; the record counts it.
        team: the processes that train together.
        listener: hears of every step.
        load: gives the pictures of a recipe.
    """
    check_parameters(recipe)  # before any picture is decoded
    team = team or Team()
    torch.manual_seed(recipe.seed + team.rank)  # dropout has no other source
    listener = (listener or Shown()) if team.leads else Listener()
    splits = load(recipe)
    _check_classes(recipe, splits.train)
    batches = build_batches(recipe, splits.train, team)
    recipe = _as_drawn(recipe, batches, listener)
    held = _held(splits, recipe.crop)
    for note in splits.record.get("notes", ()):
        listener.say(note)
    model = build_model(recipe)
    parameters = _parameters(recipe, folder if resume else None, model, splits, tools, team)
    chosen = recipe if parameters is None else with_parameters(recipe, parameters)
    loss = tools.make_loss(chosen, len(splits.train.class_names))

    def validate(candidate: Embedder) -> Mapping[str, float]:
        assert held is not None
        rows = held.embedded(candidate, team)
        return flat_scores(tools.evaluate(rows, held.images.known_labels, clustering=False))

    about = {"recipe": recipe.as_dict(), "data": splits.record, "parameters": parameters}
    fitted = fit(
        model,
        loss,
        batches,
        settings=recipe.settings,
        validate=validate if held is not None else None,
        run=Run(folder, about, resume, recipe.tensorboard),
        execution=build_execution(recipe, model),
        team=team,
        listener=listener,
    )
    model.eval()
    calibration = None
    if tools.calibrate is not None and held is not None:
        rows = held.embedded(model, team)
        calibration = tools.calibrate(rows, held.images.known_labels) if team.leads else None
    if calibration is not None:
        write_json(folder / "calibration.json", calibration)
    scores = None
    if test:
        if calibration is None:
            tools = dataclasses.replace(tools, check=None)
        scores = _test_scores(folder, model, splits, tools, team)
    if team.leads:
        report_run(folder, model, splits)
    return Outcome(fitted, model, splits, None if scores is None else flat_scores(scores))


def _test_scores(folder: Path, model: Embedder, splits: Splits, tools: Tools, team: Team) -> Any:
    """The scores on the test classes; the look is noted, and how far the probabilities held."""
    reliability: Mapping[str, Any] | None = None

    def evaluate_and_check(*rows: Any, **gallery: Any) -> Any:
        nonlocal reliability
        if tools.check is not None:  # here, where the test pictures are embedded already
            reliability = tools.check(folder / "calibration.json", *rows, **gallery)
        return tools.evaluate(*rows, **gallery)

    scores = score_split(model, splits, "test", evaluate_and_check, team)
    if team.leads:
        note_test_look(folder, scores, reliability)
    return scores


def _check_classes(recipe: Recipe, images: ImageSet) -> None:
    classes = len(images.class_names)
    if images.labels is None:
        problem = "pictures without class folders or labels"
    elif classes < 2:
        problem = f"{classes} class to train on, and two are the least"
    else:
        return
    raise BadData(
        f"{recipe.data}: {problem}; put each class into a folder of its own, or learn without "
        "labels: --labels none"
    )


def _as_drawn(recipe: Recipe, batches: Batches, listener: Listener) -> Recipe:
    """The recipe with the sizes of its batches, which it may leave open."""
    sampler = batches.sampler
    assert isinstance(sampler, ClassBalancedSampler)
    classes, pictures = sampler.classes_per_batch, sampler.pictures_per_class
    usual_classes = recipe.classes_per_batch or CLASSES_PER_BATCH
    usual_pictures = recipe.pictures_per_class or PICTURES_PER_CLASS
    if (classes, pictures) != (usual_classes, usual_pictures):
        listener.say(f"a batch has {classes} classes with {pictures} pictures each, to fit the set")
    return dataclasses.replace(recipe, classes_per_batch=classes, pictures_per_class=pictures)


def _held(splits: Splits, crop: int) -> Shelf | None:
    """The readable pictures to choose a model by; None, and a note, where no two share a class."""
    if not len(splits.validation):
        return None
    shelf = Shelf.of(splits.validation, crop)
    if (shelf.images.class_sizes() > 1).any():
        return shelf
    splits.record.setdefault("notes", []).append(
        "no class to validate with has two readable pictures: the last model is kept"
    )
    return None


def _parameters(
    recipe: Recipe,
    resumed: Path | None,
    model: Embedder,
    splits: Splits,
    tools: Tools,
    team: Team,
) -> dict[str, Any] | None:
    if recipe.parameters == "given":
        return None
    if resumed is not None:
        return kept_parameters(resumed)
    if tools.estimate is None:
        raise ValueError('parameters="from-data": the tools need estimate')
    return estimate_parameters(recipe, model, splits.train, tools.estimate, team)
