"""A whole run without labels: cluster, train, cluster again, and keep the last model."""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cbml.data import Batches, ClassBalancedSampler, ImageSet, Splits, TrainTransform
from cbml.data.catalogue.layouts import no_pictures, opened, picture_folders
from cbml.data.catalogue.own import SPLIT_NAMES, unlabelled
from cbml.data.checks import recognise
from cbml.errors import BadData
from cbml.files import replaced_file, write_json
from cbml.models import Embedder
from cbml.pseudo.labels import cluster_count
from cbml.pseudo.recipe import batch_sizes
from cbml.pseudo.refresh import Labels, Refresh, Study
from cbml.pseudo.staged import StagedLoss
from cbml.pseudo.whitening import start_head
from cbml.training import (
    Listener,
    Outcome,
    Recipe,
    Run,
    Team,
    Tools,
    fit,
    note_test_look,
    read_record,
    score_split,
)
from cbml.training.assembly import (
    Shelf,
    build_execution,
    build_model,
    flat_scores,
    load_splits,
)
from cbml.training.measured import with_parameters
from cbml.training.recipe import PICTURES_PER_CLASS
from cbml.training.views import report_run

__all__ = ["load_pictures", "train_unlabelled"]

_SPLITS = {(name,) for name in SPLIT_NAMES}


def train_unlabelled(
    recipe: Recipe,
    folder: Path,
    tools: Tools,
    *,
    resume: bool = False,
    test: bool = False,
    team: Team | None = None,
    listener: Listener | None = None,
) -> Outcome:
    """Do what a recipe with labels="none" or "each" says, with all records in one folder.

    There is nothing to choose a model by, so the last one is kept. The labels of the last
    clustering are in `clusters.csv`.

    Args:
        recipe: every choice.
        folder: of the run.
        tools: makes the loss, scores; constants are estimated at each clustering.
        resume: go on from the newest checkpoint.
        test: look at the test classes when all is done; the record counts it.
        team: the processes that train together.
        listener: hears of every step.
    """
    team = team or Team()
    torch.manual_seed(recipe.seed + team.rank)  # dropout has no other source
    splits = load_splits(recipe) if recipe.study else load_pictures(recipe)
    shelf = Shelf.of(ImageSet(splits.train.paths), recipe.crop)
    clusters = len(shelf.images) if recipe.labels == "each" else 0
    clusters = clusters or cluster_count(len(shelf.images), recipe.clusters)
    model = build_model(recipe)
    restored = resume and any((folder / "checkpoints").glob("step-*/manifest.json"))
    if recipe.head_start == "whitened" and not restored:
        start_head(model, shelf, team)
    loss = _loss(recipe, clusters, tools)
    study = _study(recipe, splits, shelf, tools, team) if recipe.study else None
    batches = _batches(recipe, splits.train, shelf, team)
    refresh = Refresh(
        shelf=shelf,
        clusters=clusters,
        every=recipe.refresh_epochs,
        cluster_by=recipe.cluster_by,
        loss=loss,
        estimate=tools.estimate if isinstance(loss, StagedLoss) else None,
        study=study,
        seed=recipe.seed,
        collapse=recipe.settings.collapse,
        team=team,
    )
    about = {"recipe": recipe.as_dict(), "data": splits.record, "clusters": clusters}
    fitted = fit(
        model,
        loss,
        batches,
        settings=recipe.settings,
        relabel=refresh if recipe.labels == "none" else None,
        run=Run(folder, about, resume, recipe.tensorboard),
        execution=build_execution(recipe, model),
        team=team,
        listener=listener,
    )
    model.eval()
    seen = score_split(model, splits, "test", tools.evaluate, team) if test else None
    found = None if study is None else study(model, batches.images.known_labels[[*shelf.numbers]])
    if team.leads:
        if seen is not None:
            note_test_look(folder, seen)
        _write_records(folder, batches, found)
        if recipe.labels == "none":
            held = splits.validation if recipe.study else ImageSet(())
            report_run(
                folder, model, dataclasses.replace(splits, train=batches.images, validation=held)
            )
    return Outcome(fitted, model, splits, None if seen is None else flat_scores(seen))


def load_pictures(recipe: Recipe) -> Splits:
    """The pictures of a recipe without their labels; those to test on stay as they are.

    Of a folder every picture below it is taken, whatever the folders within it mean, unless they
    are splits: train, test and the like.

    Args:
        recipe: names the set.
    """
    if recognise(recipe.data) == "folder":
        root = opened(recipe.data)
        folders = dict(picture_folders(root))
        if not folders:
            raise no_pictures(root)
        if not {below.relative_to(root).parts[:1] for below in folders} <= _SPLITS:
            paths = tuple(path for found in folders.values() for path in found)
            return unlabelled("folder", root, "all pictures below it", paths)
    splits = load_splits(dataclasses.replace(recipe, validation=0.0))
    return dataclasses.replace(splits, train=ImageSet(splits.train.paths))


def _loss(recipe: Recipe, clusters: int, tools: Tools) -> nn.Module:
    if recipe.parameters == "given":
        return tools.make_loss(recipe, clusters)
    if recipe.labels == "each":
        raise BadData("parameters=from-data: needs clusters, and labels=each makes none")

    def make(options: Mapping[str, Any]) -> nn.Module:
        return tools.make_loss(with_parameters(recipe, {"options": options}), clusters)

    return StagedLoss(make)


def _batches(recipe: Recipe, images: ImageSet, shelf: Shelf, team: Team) -> Batches:
    """Until the first clustering every picture is a class of its own."""
    each = np.arange(len(images))
    sampler = ClassBalancedSampler(
        each,
        pictures_per_class=recipe.pictures_per_class or PICTURES_PER_CLASS,
        batch_range=batch_sizes(recipe),
        guessed=True,
        seed=recipe.seed,
        rank=team.rank,
        world_size=team.size,
    )
    names = tuple(map(str, range(len(images))))
    return Batches(
        ImageSet(images.paths, each, names),
        sampler,
        transform=TrainTransform(crop=recipe.crop),
        source=shelf.packed,
        workers=recipe.workers,
        bad_limit=recipe.bad_limit,
    )


def _study(recipe: Recipe, splits: Splits, shelf: Shelf, tools: Tools, team: Team) -> Study:
    """Scores on classes held out of the training, and how well clusters meet true labels."""
    held = Shelf.of(splits.validation, recipe.crop) if len(splits.validation) else None
    truth = splits.train.known_labels[[*shelf.numbers]]

    def study(model: Embedder, labels: Labels) -> Mapping[str, float]:
        scores = {} if tools.agreement is None else {"nmi": tools.agreement(truth, labels)[0]}
        if held is not None:
            rows = held.embedded(model, team)
            found = flat_scores(tools.evaluate(rows, held.images.known_labels, clustering=False))
            scores |= {f"held-out {name}": found[name] for name in ("recall@1", "map_at_r")}
        return scores

    return study


def _write_records(
    folder: Path,
    batches: Batches,
    study: Mapping[str, float] | None,
) -> None:
    images = batches.images
    with (
        replaced_file(folder / "clusters.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        rows = csv.writer(file)
        rows.writerow(["path", "cluster"])
        rows.writerows(zip(map(str, images.paths), images.known_labels.tolist(), strict=True))
    if study is not None:
        write_json(folder / "run.json", {**read_record(folder), "study": dict(study)})
