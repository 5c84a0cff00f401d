"""`cbml evaluate`: the scores of a trained model."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cbml.data import Splits
    from cbml.training import Recipe

__all__ = ["verb"]

Split = Literal["train", "validation", "test", "all"]


def verb(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a saved model's.")],
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="Other pictures than those of the run, as for cbml train."
        ),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(
            help="Which pictures; validation, train without one, or all of DATA.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="The test pictures; the run's record counts it.")
    ] = False,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept a set that is not whole.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a model: Recall@K, MAP@R, R-precision, NMI and AMI.

    Scores are fractions. Without --test only pictures of training classes are looked at; every
    look at test pictures is counted in the run's run.json and shown in its report.html.

    \b
    Examples:
      cbml evaluate runs/emoji --test
      cbml evaluate runs/emoji --split train
      cbml evaluate runs/emoji my-pictures/ --json
    """
    if test and split not in (None, "test"):
        raise typer.BadParameter(f"--test and --split {split} are two things: choose one")
    from cbml.cli.embed import model_folder
    from cbml.evaluation import evaluate
    from cbml.models import Embedder
    from cbml.training import note_test_look, score_conditions, score_split
    from cbml.training.assembly import flat_scores, load_splits
    from cbml.training.scoring import shows_test_pictures
    from cbml.training.views import report_run

    model = Embedder.load(model_folder(run))
    recipe = _recipe(run, data, allow_partial)
    splits = load_splits(recipe)
    usual = "validation" if len(splits.validation) else "train"
    chosen: str = "test" if test else split or (usual if data is None else "all")
    print(f"scoring {chosen} pictures of {recipe.data}", file=sys.stderr)
    found = score_split(model, splits, chosen, evaluate)
    if data is None and chosen in ("test", "all"):
        note_test_look(run, found if chosen == "test" else None)
        report_run(run, model, splits)
    elif data is not None and shows_test_pictures(run, _paths(splits, chosen)):
        note_test_look(run)
    scores, conditions = flat_scores(found), score_conditions(found)
    if as_json:
        facts = {"run": str(run), "data": recipe.data, "split": chosen}
        print(json.dumps({**facts, "scores": scores, "conditions": conditions}))
        return
    for name, value in scores.items():
        # Among as many results as there are pictures everything is found: no news.
        if not (name.startswith("recall@") and int(name[7:]) >= found.gallery):
            print(f"{name:<12} {value:.4f}")
    for name, value in conditions.items():
        print(f"  {name.replace('_', ' ')}: {value:,}")


def _paths(splits: "Splits", chosen: str) -> "Iterator[Path]":
    wanted = ("test", "query", "gallery") if chosen == "test" else (chosen,)
    for name, images in splits.parts().items():
        if chosen == "all" or name in wanted:
            yield from images.paths


def _recipe(run: Path, data: str | None, allow_partial: bool) -> "Recipe":
    import dataclasses

    from cbml.errors import BadData
    from cbml.training import Recipe, read_record, recipe_of

    if data is not None:
        # Validation and test classes are cut as a run over these pictures would cut them.
        return Recipe(data=data, allow_partial=allow_partial)
    if not (run / "run.json").exists():
        raise BadData(f"{run}: a model without a run; say which pictures: cbml evaluate {run} DATA")
    recipe = recipe_of(read_record(run).get("recipe", {}))
    return dataclasses.replace(recipe, allow_partial=allow_partial or recipe.allow_partial)
