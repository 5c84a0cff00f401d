"""`cbml evaluate`: the scores of a trained model."""

import json
from typing import Annotated, Literal

import typer

from cbml.cli.options import (
    AllowPartial,
    AsJson,
    LabelColumn,
    LabelFrom,
    OwnBackbone,
    PathColumn,
    SavedModel,
)

_SHOWN = 5

Split = Literal["train", "validation", "test", "all"]


def verb(
    run: SavedModel,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="Images to score instead of the run's own, as for cbml train."
        ),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(
            help="Images to score; by default validation (train if there is none), or all of DATA.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Score the test images; run.json counts it.")
    ] = False,
    label_from: LabelFrom = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_partial: AllowPartial = False,
    as_json: AsJson = False,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="Your own method, if the run was trained with one that refines embeddings.",
            show_default=False,
        ),
    ] = None,
    backbone: OwnBackbone = None,
) -> None:
    """Score a model: Recall@K, MAP@R, R-precision, NMI and AMI.

    Scores are fractions. Without --test only images of training classes are evaluated; every
    evaluation of test images is counted in the run's run.json and shown in its report.html.

    \b
    Examples:
      cbml evaluate runs/emoji --test
      cbml evaluate runs/emoji --split train
      cbml evaluate runs/emoji my-images/ --json
    """
    if test and split not in (None, "test"):
        raise typer.BadParameter(f"--test and --split {split} contradict each other: choose one")
    reading = {"label_from": label_from, "path_column": path_column, "label_column": label_column}
    if data is None and any(reading.values()):
        raise typer.BadParameter("a run reads its own images as in training; these are for DATA")
    from cbml.report import tells_something
    from cbml.runs import evaluate_run, use_backbone
    from cbml.training import ProgressCallback

    use_backbone(backbone)
    chosen = "test" if test else split
    found = evaluate_run(
        run,
        data,
        split=chosen,
        reading=reading,
        allow_partial=allow_partial,
        method=method,
        callback=ProgressCallback(),
    )
    result = found.as_dict()
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result["scores"].items():
        if tells_something(name, found.scores.gallery):
            before = "" if found.start is None else f"   start {found.start[name]:.4f}"
            print(f"{name:<12} {value:.4f}{before}")
    worst = [f"{name} {row['recall@1']:.2f}" for name, row in found.classes.items()][:_SHOWN]
    if len(found.classes) > 1:
        print(f"worst classes by recall@1 (--json lists all): {', '.join(worst)}")
    for name, value in result["conditions"].items():
        print(f"  {name.replace('_', ' ')}: {'yes' if value is True else f'{value:,}'}")
    if found.plain is not None:
        recall = found.plain.metrics["recall@1"]
        print(f"  recall@1 of the model's own embeddings: {recall:.4f}")
