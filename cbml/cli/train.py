"""`cbml train`: a model from pictures."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from cbml.training import Outcome, Recipe, Tools

__all__ = ["verb"]

_NAMED = ("labels", "clusters", "loss", "parameters", "backbone", "crop", "seed", "steps")


def verb(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A folder, an archive, a table, or a set: emoji, cub …", metavar="DATA"
        ),
    ] = None,
    labels: Annotated[
        Literal["known", "none", "each"] | None,
        typer.Option(help="none: cluster the pictures; each: every picture is its own class."),
    ] = None,
    clusters: Annotated[
        int | None, typer.Option(help="With --labels none; one for every four pictures.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="A name in cbml.LOSSES.")] = None,
    parameters: Annotated[
        Literal["given", "from-data"] | None,
        typer.Option(
            help="The loss's constants: as given, or estimated before the first step. CBML on a "
            "pretrained network estimates them when nothing is said."
        ),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="A name in cbml.BACKBONES.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights.")] = None,
    crop: Annotated[int | None, typer.Option(help="Side of the square the network sees.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/DATA-LOSS-SEED.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, as often as you like.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this folder.", metavar="RUN")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Score the test classes at the end; recorded.")
    ] = False,
    processes: Annotated[
        int, typer.Option(help="Processes on this machine that share each batch.")
    ] = 1,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write RUN/tensorboard as well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model, choose it on held-out classes, and keep all that is needed to go on.

    The run's folder holds run.json, metrics.jsonl, checkpoints/, model/ and report.html. Ctrl-C is
    safe: the last line says how to go on.

    \b
    Examples:
      cbml train emoji --out runs/emoji --test
      cbml train my-pictures/ --parameters given --set loss.ratio=fine_grained
      cbml train my-pictures/ --loss proxy_anchor --set learning_rate=3e-5 --json
      cbml train my-pictures/ --labels none --clusters 100 --set refresh_epochs=2
      cbml train --resume runs/emoji
    """
    recipe, folder = _planned(data, resume, out, overrides or [], locals())
    if processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        from cbml.training.processes import run_processes

        raise typer.Exit(run_processes(processes, sys.argv[1:], _again(folder, processes)))
    from cbml.cli import exit_code
    from cbml.training import Interrupted, Shown, joined_team
    from cbml.training.processes import last_word

    # A process that torchrun starts again goes on where the lost one stood.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    with joined_team() as team, last_word(exit_code):
        try:
            outcome = _session(recipe)(
                recipe,
                folder,
                _tools(),
                resume=resume is not None or (restarted and (folder / "run.json").exists()),
                test=test,
                team=team,
                listener=Shown(),
            )
        except Interrupted as stop:
            if team.leads:
                print(f"{stop}; go on with:  {_again(folder, team.size)}", file=sys.stderr)
            raise typer.Exit(stop.exit_code) from None
        except (KeyboardInterrupt, SystemExit):  # before the first step, or after the last
            if team.leads and (folder / "run.json").exists():
                print(f"stopped; go on with:  {_again(folder, team.size)}", file=sys.stderr)
            raise
        except RuntimeError as error:
            if team.size > 1 and "onnection" in str(error):
                again = _again(folder, team.size)
                raise ConnectionError(f"another process was lost; go on with:  {again}") from error
            raise
        if team.leads:
            _print_outcome(folder, outcome.fitted, outcome.test, as_json)


def _again(folder: Path, processes: int) -> str:
    shared = f" --processes {processes}" if processes > 1 else ""
    return f"cbml train --resume {folder}{shared}"


def _planned(
    data: str | None,
    resume: Path | None,
    out: Path | None,
    overrides: list[str],
    options: dict[str, Any],
) -> tuple["Recipe", Path]:
    from cbml.errors import BadData
    from cbml.pseudo import unlabelled_recipe
    from cbml.training.measured import check_parameters, with_default_parameters
    from cbml.training.recipe import recipe_for, recipe_of, with_overrides
    from cbml.training.runs import read_record

    named = [f"{key}={options[key]}" for key in _NAMED]
    words = [word for word in named if not word.endswith("=None")] + overrides
    if options["tensorboard"]:
        words.append("tensorboard=true")
    if (data is None) == (resume is None):
        raise typer.BadParameter("give either DATA or --resume RUN")
    try:
        if resume is not None:
            start = recipe_of(read_record(resume).get("recipe", {}))
            recipe = with_overrides(start, words)
        elif any(word in ("labels=none", "labels=each") for word in words):
            recipe = unlabelled_recipe(str(data), words)
        else:
            recipe = with_overrides(recipe_for(str(data)), words)
            if not any(word.startswith("parameters=") for word in words):
                recipe = with_default_parameters(recipe)
        _tools().make_loss(recipe, 2)
        check_parameters(recipe)
        if recipe.labels != "none" and recipe.clusters is not None:
            raise ValueError("--clusters: only with --labels none")
        if recipe.parameters == "from-data" and recipe.loss != "cbml":
            raise ValueError("--parameters from-data: only the loss cbml has such constants")
    except (BadData, TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if resume is not None:
        return recipe, resume
    name = f"{Path(str(data)).stem}-{recipe.loss}-{recipe.seed}"
    return recipe, out or Path("runs") / name


def _session(recipe: "Recipe") -> Callable[..., "Outcome"]:
    if recipe.labels == "known":
        from cbml.training import train_run

        return train_run
    from cbml.pseudo import train_unlabelled

    return train_unlabelled


def _tools() -> "Tools":
    import dataclasses

    from cbml.experiments.tools import TOOLS

    return dataclasses.replace(TOOLS, calibrate=_calibrate, check=_check)


def _calibrate(embeddings: Any, labels: Any) -> dict[str, Any] | None:
    """How similarities become probabilities; None where there are too few classes to tell."""
    from cbml.bayes import MatchProbability
    from cbml.errors import BadData

    try:
        return MatchProbability.fit(embeddings, labels).as_record()
    except BadData as error:
        print(f"no calibration.json: {error}", file=sys.stderr)
        return None


def _check(path: Path, *rows: Any, **gallery: Any) -> dict[str, Any]:
    """How far the probabilities hold among the first ten results of searches."""
    from cbml.bayes import MatchProbability
    from cbml.bayes.analysis import check_results

    return check_results(MatchProbability.load(path), *rows, **gallery)[10].as_dict()


def _print_outcome(folder: Path, fitted: Any, test: Any, as_json: bool) -> None:
    facts = {
        "run": str(folder),
        "steps": fitted.steps,
        "best_step": fitted.best_step,
        "validation": fitted.best_score,
        "stopped_early": fitted.stopped_early,
        "rates": fitted.rates,
        "test": test,
    }
    if as_json:
        print(json.dumps(facts))
        return
    print(f"{folder}: {fitted.steps} steps")
    if fitted.best_score is not None:
        print(f"  validation {fitted.best_score:.4f} after step {fitted.best_step}: kept in model/")
    for name, value in (test or {}).items():
        print(f"  test {name:<12} {value:.4f}")
    if (folder / "bad_images.csv").exists():
        print(f"  some pictures cannot be read: {folder / 'bad_images.csv'}")
    if (folder / "clusters.csv").exists():
        print("  without labels the last model is kept, in model/; clusters.csv names the clusters")
        return
    print(f"  score it:  cbml evaluate {folder}")
