"""`cbml analyze`: what the similarities of a model's images tell."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbml.cli.options import AsJson, OwnBackbone, RunFolder

if TYPE_CHECKING:
    from cbml.runs import RunAnalysis


def verb(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Images to analyze instead of the run's own."),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another run to draw beside it.", metavar="RUN")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Show the test images too; run.json counts it.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figures; RUN/analysis by default.")
    ] = None,
    as_json: AsJson = False,
    backbone: OwnBackbone = None,
) -> None:
    """Analyze a run's similarities and match probabilities.

    Writes analysis.html with the similarities of pairs before and after training and the likelihood
    ratio, and calibration.json, which turns the similarities of search results into probabilities.
    The calibration is fitted to all images of the validation classes; everything else is estimated
    from a sample if there are more than 4,096 images.

    \b
    Examples:
      cbml analyze runs/emoji
      cbml analyze runs/with --compare runs/without --json
    """
    from cbml.runs import analyze_run, use_backbone
    from cbml.training import ProgressCallback

    use_backbone(backbone)
    found = analyze_run(run, data, compare=compare, test=test, out=out, callback=ProgressCallback())
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        _print(found)


def _print(found: "RunAnalysis") -> None:
    from cbml.runs import analysis_tables

    for table in analysis_tables(found.grid):
        lines = [table.heads, *table.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print("  ".join(cells).rstrip())
        print()
    for name, check in found.reliability.items():
        print(
            f"probabilities, {name}: ECE {check.ece:.3f}, Brier {check.brier:.3f}, "
            f"log loss {check.log_loss:.3f}"
        )
    print(f"page:  {found.files[0]}")
