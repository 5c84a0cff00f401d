"""`cbml train`: a model from images."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cbml.cli.options import (
    AllowPartial,
    AsJson,
    KnownAs,
    LabelColumn,
    LabelFrom,
    PathColumn,
    SplitBy,
)
from cbml.losses import LOSSES
from cbml.models import BACKBONES
from cbml.program import command
from cbml.progress import say

if TYPE_CHECKING:
    from cbml.runs import RunConfig, RunResult
    from cbml.training import Distributed


def verb(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(
            help="A folder, an archive, a table, or a dataset: emoji, cub …", metavar="DATA"
        ),
    ] = None,
    labels: Annotated[
        Literal["known", "names", "none", "each"] | None,
        typer.Option(
            help="names: labels are in the file names; none: learn from larger views of the "
            "images, or from clusters; each: every image is its own class."
        ),
    ] = None,
    label_from: LabelFrom = None,
    known_as: KnownAs = None,
    split: SplitBy = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_partial: AllowPartial = False,
    clusters: Annotated[
        int | None,
        typer.Option(help="Clusters for --labels none; by default as many as the images propose."),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help=f"{', '.join(LOSSES)}; or package.module:Class.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="A name that cbml methods lists, or package.module:Class.")
    ] = None,
    parameters: Annotated[
        Literal["given", "from-data"] | None,
        typer.Option(
            help="The loss's constants: as given, or estimated before the first step. CBML on a "
            "pretrained network estimates them by default."
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(BACKBONES)}; timm:NAME; or package.module:function."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Start from the model of an earlier run."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Choose crop and steps so that the run takes this long on this machine."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps.", show_default="200 on a CPU")
    ] = None,
    crop: Annotated[
        int | None,
        typer.Option(
            help="Side of the square the network sees, 227 in the paper.",
            show_default="128 on a CPU",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; runs/DATA-LOSS-SEED by default.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: key=value; may be repeated."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the run in this folder.", metavar="RUN")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Score the test classes at the end; run.json counts it.")
    ] = False,
    processes: Annotated[
        int, typer.Option(help="Processes on this machine that share each batch.")
    ] = 1,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write RUN/tensorboard as well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on images, with or without labels.

    The model is selected on held-out classes. The run's folder holds run.json, metrics.jsonl,
    checkpoints/, model/ and report.html. Ctrl-C is safe: the last line says how to resume.

    \b
    Examples:
      cbml train emoji --out runs/emoji --test
      cbml train my-images/ --minutes 10 --test
      cbml train my-images/ --start runs/emoji
      cbml train my-images/ --parameters given --set loss.ratio=fine_grained
      cbml train my-images/ --loss proxy_anchor --set learning_rate=3e-5 --json
      cbml train my-images/ --labels none --clusters 100 --set refresh_epochs=2
      cbml train --resume runs/emoji
    """
    if minutes is not None and steps is not None:
        raise typer.BadParameter("--minutes chooses the steps: leave out one of the two")
    if start is not None and backbone is not None:
        raise typer.BadParameter("--start gives the network: leave out --backbone")
    # Options that are settings come from the context: their names are not listed again.
    given = _settings(context.params)
    config, folder = _planned(data, resume, out, overrides or [], given)
    if processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        from cbml.training import run_processes

        again = _again(folder, config, processes)
        raise typer.Exit(run_processes(processes, sys.argv[1:], again))
    from cbml.cli import exit_code
    from cbml.runs import run
    from cbml.training import join_processes, last_word

    # A process that torchrun starts again resumes where the lost one stood.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    resumed = resume is not None or (restarted and (folder / "run.json").exists())
    with join_processes() as distributed, last_word(exit_code):
        with _how_to_resume(folder, config, distributed):
            result = run(config, folder, resume=resumed, test=test, distributed=distributed)
        if distributed.is_main_process:
            _print_result(result, as_json)


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are settings of a run under the same name."""
    from cbml.runs import FLAT_KEYS

    options = {**options, "data": None}
    if options["labels"] == "names":
        options |= {"labels": None, "label_from": options["label_from"] or "auto"}
    return {
        key: str(value) if isinstance(value, Path) else value
        for key, value in options.items()
        if key in FLAT_KEYS and value is not None and value is not False
    }


def _planned(
    data: str | None,
    resume: Path | None,
    out: Path | None,
    texts: list[str],
    given: Mapping[str, Any],
) -> tuple["RunConfig", Path]:
    """The config and the folder of the run; what cannot be meant is a usage error."""
    from cbml.errors import BadData
    from cbml.runs import RunConfig, check_names, parse_overrides

    if (data is None) == (resume is None):
        raise typer.BadParameter("give either DATA or --resume RUN")
    try:
        if resume is not None:
            from cbml.runs import resumed_config

            config = resumed_config(resume, texts, given)
        else:
            changes = parse_overrides(texts, given)
            images = {"source": str(data), **changes.pop("data", {})}
            config = RunConfig(images, **changes)
        check_names(config)
        # They import torch, which a misspelled name need not.
        from cbml.runs import check_options, with_larger_views

        if resume is None:
            config = with_larger_views(config, changes)
        check_options(config)
    except BadData as error:
        raise typer.BadParameter(str(error)) from None
    if resume is not None:
        return config, resume
    loss = config.loss.name.rpartition(":")[2]
    name = f"{Path(str(data)).stem}-{loss}-{config.training.seed}"
    return config, out or Path("runs") / name


def _again(folder: Path, config: "RunConfig", processes: int) -> str:
    words = ["train", "--resume", str(folder)]
    words += ["--processes", str(processes)] if processes > 1 else []
    for option, name in config.own_code.items():
        words += [f"--{option}", name]
    return command(*words)


@contextlib.contextmanager
def _how_to_resume(folder: Path, config: "RunConfig", distributed: "Distributed") -> Iterator[None]:
    """Where the run is interrupted, the last line says how to resume it."""
    from cbml.training import Interrupted

    again = _again(folder, config, distributed.size)
    try:
        yield
    except Interrupted as stop:
        if distributed.is_main_process:
            say(f"{stop}; resume with:  {again}")
        raise typer.Exit(stop.exit_code) from None
    except (KeyboardInterrupt, SystemExit):  # before the first step, or after the last
        if distributed.is_main_process and (folder / "run.json").exists():
            say(f"stopped; resume with:  {again}")
        raise
    except RuntimeError as error:
        if distributed.size > 1 and "onnection" in str(error):
            raise ConnectionError(f"another process was lost; resume with:  {again}") from error
        raise


def _print_result(result: "RunResult", as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_dict()))
        return
    from cbml.progress import counted
    from cbml.report import tells_something

    folder, fitted = result.folder, result.fitted
    print(f"{folder}: {counted(fitted.steps, 'step')}")
    if fitted.best_score is not None:
        chosen_by = result.config.training.choose_by
        judges = "" if chosen_by == "view_agreement" else "held-out "
        print(
            f"  {judges}{chosen_by}: {fitted.best_score:.4f} after step "
            f"{fitted.best_step}, kept in model/ (start {fitted.start_score:.4f}, last step "
            f"{fitted.last_score:.4f})"
        )
    before, searched = result.test_start or {}, result.splits.gallery or result.splits.test or ()
    for name, value in (result.test or {}).items():
        start = f"   start {before[name]:.4f}" if name in before else ""
        if tells_something(name, len(searched)):
            print(f"  test {name:<12} {value:.4f}{start}")
    if (folder / "bad_images.csv").exists():
        print(f"  some images cannot be read: {folder / 'bad_images.csv'}")
    if (folder / "clusters.csv").exists():
        last = "" if fitted.best_step is not None else "the last model is kept, in model/; "
        print(f"  without labels {last}clusters.csv names the clusters")
    _print_next(result)
    if warning := _no_gain(result):
        print(warning)


def _no_gain(result: "RunResult") -> str:
    """What to shout where the training did not pay; "" where it did, or nobody knows."""
    rate = result.config.optimizer.learning_rate
    lower = f"--set learning_rate={rate / 3:.0e}".replace("e-0", "e-").replace("e+00", "")
    if result.fitted.best_step == 0:
        return (
            "TRAINING DID NOT IMPROVE ON THE START: model/ is the network as it was before. Try a "
            f"lower learning rate ({lower}), more steps, or more classes."
        )
    if result.test is None or result.test_start is None:
        return ""
    titles = {"recall@1": "Recall@1", "map@r": "MAP@R"}
    chosen_by = result.config.training.choose_by
    for name in sorted(titles, key=lambda name: name != chosen_by):  # the other breaks ties
        after, before = result.test.get(name), result.test_start.get(name)
        if after is None or before is None or after > before:
            return ""
        if after < before:
            return (
                f"THE TRAINED MODEL IS WORSE THAN THE START ON THE TEST IMAGES: {titles[name]} "
                f"{after:.3f} against {before:.3f}. Train for longer (--steps "
                f"{4 * result.fitted.steps}, or --minutes), or try a lower learning rate ({lower})."
            )
    return ""


def _print_next(result: "RunResult") -> None:
    """Where the result is, and the lines to copy that lead on."""
    from cbml.runs import images_to_index

    run, gallery = result.folder, result.folder / "gallery"
    index = command("index", run, *images_to_index(result.config), "--out", gallery)
    if (result.folder / "report.html").exists():
        print(f"  look at it:  {result.folder / 'report.html'}")
    if result.test is None and result.config.data.labels == "known":
        print(f"  score it:    {command('evaluate', run, '--test')}")
    print(f"  search it:   {index}")
    print(f"               {command('serve', gallery, '--open')}")
