"""`cbml analyze`: what the similarities of a model's pictures tell."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cbml.bayes.analysis import SetAnalysis
    from cbml.cli.looked import Looked
    from cbml.models import Embedder
    from cbml.training import Recipe

    Grid = dict[str, dict[str, SetAnalysis]]

__all__ = ["verb"]


def verb(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Other pictures than those of the run."),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another run, drawn beside it.", metavar="RUN")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="The test pictures too; the run's record counts it.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the figures; RUN/analysis.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Similarities of pairs before and after training, their likelihood ratio, and probabilities.

    Writes analysis.html and its figures, and calibration.json: how similarities of search results
    become probabilities, learned from all pictures of the validation classes. For everything else,
    sets of more than 4,096 pictures are sampled.

    \b
    Examples:
      cbml analyze runs/emoji
      cbml analyze runs/with --compare runs/without --json
    """
    drawing = _can_draw()
    recipe = _recipe(run, data)
    models = _models(run, compare, recipe)
    from cbml.cli.looked import count_look, looked_sets

    sets = looked_sets(recipe, whole=data is not None, test=test)
    for seen_by in [run] if compare is None or compare.samefile(run) else [run, compare]:
        count_look(seen_by, sets)
    folder = out or run / "analysis"
    grid, seen = _analyzed(models, sets)
    reliability = {}
    if data is None:
        reliability = _checked(models["after"], sets, seen, run / "calibration.json")
    folder.mkdir(parents=True, exist_ok=True)
    files = _draw(folder, run.resolve().name, grid, reliability, drawing)
    facts = {
        "run": str(run),
        "data": recipe.data,
        "sets": {name: {m: one.as_dict() for m, one in row.items()} for name, row in grid.items()},
        "reliability": {name: check.as_dict() for name, check in reliability.items()},
        "files": [str(path) for path in files],
    }
    from cbml.files import write_json

    write_json(folder / "analysis.json", facts)
    if as_json:
        print(json.dumps(facts))
    else:
        _print(grid, reliability, files)


def _recipe(run: Path, data: str | None) -> "Recipe":
    import dataclasses

    from cbml.training import read_record, recipe_of

    recipe = recipe_of(read_record(run).get("recipe", {}))
    return recipe if data is None else dataclasses.replace(recipe, data=data)


def _models(run: Path, compare: Path | None, recipe: "Recipe") -> dict[str, "Embedder"]:
    from cbml.cli.embed import model_folder
    from cbml.models import Embedder
    from cbml.training.assembly import build_model

    models = {"before": build_model(recipe), "after": Embedder.load(model_folder(run))}
    if compare is not None:
        name = compare.resolve().name
        if name == run.resolve().name:  # runs/a/emoji beside runs/b/emoji
            name = str(compare)
        models[f"after, {name}"] = Embedder.load(model_folder(compare))
    return models


def _analyzed(
    models: dict[str, "Embedder"], sets: dict[str, "Looked"]
) -> tuple["Grid", dict[str, dict[str, Any]]]:
    """Analyses by pictures and model, and what the trained model made of the pictures of each set.

    A set without pairs of both kinds is left out, with a word about it.
    """
    from cbml.bayes.analysis import analyze_set
    from cbml.errors import BadData

    grid: Grid = {}
    seen: dict[str, dict[str, Any]] = {}
    problem = "no pictures to look at"
    for name, looked in sets.items():
        for model_name, model in models.items():
            print(f"embedding {len(looked)} {name} pictures, {model_name}", file=sys.stderr)
            sides = looked.embedded(model)
            if model_name == "after":
                seen[name] = sides
            try:
                one = analyze_set(**sides)
            except BadData as error:
                problem = f"{name} pictures: {error}"
                print(f"left out, {problem}", file=sys.stderr)
                break  # it is the same for every model
            grid.setdefault(name, {})[model_name] = one
    if not grid:
        raise BadData(problem)
    return grid, seen


def _checked(
    model: "Embedder", sets: dict[str, "Looked"], seen: dict[str, dict[str, Any]], path: Path
) -> dict[str, Any]:
    """Learn match probabilities from all validation pictures, write them, and check them."""
    from cbml.bayes import MatchProbability
    from cbml.bayes.analysis import check_results
    from cbml.cli.looked import Looked
    from cbml.errors import BadData

    if "validation" not in seen:
        print("no probabilities: no classes were held out to learn them from", file=sys.stderr)
        return {}
    held, whole = seen["validation"], sets["validation"].whole
    if whole is not None:
        # `cbml train` learned from all of them: a sample would replace it by something worse.
        print(f"embedding all {len(whole)} validation pictures", file=sys.stderr)
        held = Looked(whole).embedded(model)
    try:
        probability = MatchProbability.fit(**held)
    except BadData as error:
        print(f"no probabilities: {error}", file=sys.stderr)
        return {}
    probability.save(path)
    reliability: dict[str, Any] = {"validation, halves of classes": probability.check}
    for name, sides in seen.items():
        if name not in ("train", "validation"):
            checks = check_results(probability, **sides)
            reliability |= {f"{name}, first {k}": check for k, check in checks.items()}
    return reliability


def _can_draw() -> bool:
    """Whether there is matplotlib; a word about it where there is not."""
    from cbml.errors import MissingExtra

    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        print(f"without figures: {MissingExtra('matplotlib', 'plots')}", file=sys.stderr)
        return False
    return True


def _draw(
    folder: Path, title: str, grid: "Grid", reliability: dict[str, Any], drawing: bool
) -> list[Path]:
    from cbml.bayes.figures import save_figure
    from cbml.bayes.page import analysis_tables, write_page

    figures = _figures(grid, reliability) if drawing else {}
    paths = [folder / "analysis.html"]
    named = {heading: (words, figure) for heading, words, figure in figures.values()}
    write_page(paths[0], title, analysis_tables(grid), named)
    for name, (_, _, figure) in figures.items():
        paths += save_figure(figure, folder, name)
    return paths


def _figures(grid: "Grid", reliability: dict[str, Any]) -> dict[str, tuple[str, str, "Figure"]]:
    """A heading, a sentence and a drawing, by the name of its files."""
    from cbml.bayes.figures import draw_ratios, draw_reliability, draw_similarities

    figures = {
        "similarities": (
            "Similarities of pairs",
            "How similar the pairs of one class and of two classes are.",
            draw_similarities(grid),
        ),
        "ratios": (
            "Likelihood ratio",
            "How many times more often a similarity is seen in pairs of one class, as counted and "
            "by the exponents of the paper.",
            draw_ratios(grid),
        ),
    }
    if reliability:
        figures["reliability"] = (
            "Match probabilities",
            "Where search results are said to be right with a probability, how many were; the "
            "larger a point, the more results.",
            draw_reliability(reliability),
        )
    return figures


def _print(grid: "Grid", reliability: dict[str, Any], files: list[Path]) -> None:
    from cbml.bayes.page import analysis_tables

    for table in analysis_tables(grid):
        lines = [table.heads, *table.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print("  ".join(cells).rstrip())
        print()
    for name, check in reliability.items():
        print(
            f"probabilities, {name}: ECE {check.ece:.3f}, Brier {check.brier:.3f}, "
            f"log loss {check.log_loss:.3f}"
        )
    print(f"page:  {files[0]}")
