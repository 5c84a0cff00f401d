"""`cbml train`: a model from images."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from cbml.runs import RunConfig, RunResult
    from cbml.training import Distributed


def verb(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A folder, an archive, a table, or a dataset: emoji, cub …", metavar="DATA"
        ),
    ] = None,
    labels: Annotated[
        Literal["known", "names", "none", "each"] | None,
        typer.Option(
            help="names: classes are in the file names; none: cluster the images; each: every "
            "image is its own class."
        ),
    ] = None,
    label_from: Annotated[
        str | None, typer.Option(help="Pattern of the file names, such as '{label}_{n}'.")
    ] = None,
    split: Annotated[
        Literal["stated", "classes"] | None,
        typer.Option(help="The splits of the data, or a new one that keeps classes apart."),
    ] = None,
    path_column: Annotated[str | None, typer.Option(help="A table's column of the files.")] = None,
    label_column: Annotated[
        str | None, typer.Option(help="A table's column of the classes.")
    ] = None,
    clusters: Annotated[
        int | None, typer.Option(help="With --labels none; one for every four images.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="A name that cbml methods lists, or package.module:Class.")
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
    backbone: Annotated[str | None, typer.Option(help="A name in cbml.BACKBONES.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights.")] = None,
    crop: Annotated[int | None, typer.Option(help="Side of the square the network sees.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/DATA-LOSS-SEED.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, as often as you like.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the run in this folder.", metavar="RUN")
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
    """Train a model, choose it on held-out classes, and keep all that is needed to resume.

    The run's folder holds run.json, metrics.jsonl, checkpoints/, model/ and report.html. Ctrl-C is
    safe: the last line says how to resume.

    \b
    Examples:
      cbml train emoji --out runs/emoji --test
      cbml train my-images/ --parameters given --set loss.ratio=fine_grained
      cbml train my-images/ --loss proxy_anchor --set learning_rate=3e-5 --json
      cbml train my-images/ --labels none --clusters 100 --set refresh_epochs=2
      cbml train --resume runs/emoji
    """
    named = {
        "labels": None if labels == "names" else labels,
        "label_from": label_from or ("auto" if labels == "names" else None),
        "split": split,
        "path_column": path_column,
        "label_column": label_column,
        "clusters": clusters,
        "loss": loss,
        "method": method,
        "parameters": parameters,
        "backbone": backbone,
        "crop": crop,
        "seed": seed,
        "steps": steps,
        "tensorboard": tensorboard or None,
    }
    words = [f"{key}={value}" for key, value in named.items() if value is not None]
    config, folder = _planned(data, resume, out, [*words, *(overrides or [])])
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


def _planned(
    data: str | None, resume: Path | None, out: Path | None, words: list[str]
) -> tuple["RunConfig", Path]:
    """The config and the folder of the run; what cannot be meant is a usage error."""
    from cbml.errors import BadData
    from cbml.runs import RunConfig, check_names, parse_overrides

    if (data is None) == (resume is None):
        raise typer.BadParameter("give either DATA or --resume RUN")
    try:
        if resume is not None:
            from cbml.runs import resumed_config

            config = resumed_config(resume, words)
        else:
            changes = parse_overrides(words)
            images = {"source": str(data), **changes.pop("data", {})}
            config = RunConfig(images, **changes)
        check_names(config)
        from cbml.runs import check_options  # imports torch, which a misspelled name need not

        check_options(config)
    except BadData as error:
        raise typer.BadParameter(str(error)) from None
    if resume is not None:
        return config, resume
    loss = config.loss.name.rpartition(":")[2]
    name = f"{Path(str(data)).stem}-{loss}-{config.training.seed}"
    return config, out or Path("runs") / name


def _again(folder: Path, config: "RunConfig", processes: int) -> str:
    words = ["cbml", "train", "--resume", str(folder)]
    words += [f"--processes {processes}"] if processes > 1 else []
    for option, name in (("loss", config.loss.name), ("method", config.method.name)):
        words += [f"--{option} {name}"] if ":" in (name or "") else []
    return " ".join(words)


@contextlib.contextmanager
def _how_to_resume(folder: Path, config: "RunConfig", distributed: "Distributed") -> Iterator[None]:
    """Where the run is interrupted, the last line says how to resume it."""
    from cbml.training import Interrupted

    again = _again(folder, config, distributed.size)
    try:
        yield
    except Interrupted as stop:
        if distributed.is_main_process:
            print(f"{stop}; resume with:  {again}", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
    except (KeyboardInterrupt, SystemExit):  # before the first step, or after the last
        if distributed.is_main_process and (folder / "run.json").exists():
            print(f"stopped; resume with:  {again}", file=sys.stderr)
        raise
    except RuntimeError as error:
        if distributed.size > 1 and "onnection" in str(error):
            raise ConnectionError(f"another process was lost; resume with:  {again}") from error
        raise


def _print_result(result: "RunResult", as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_dict()))
        return
    folder, fitted = result.folder, result.fitted
    print(f"{folder}: {fitted.steps} steps")
    if fitted.best_score is not None:
        print(f"  validation {fitted.best_score:.4f} after step {fitted.best_step}: kept in model/")
    for name, value in (result.test or {}).items():
        print(f"  test {name:<12} {value:.4f}")
    if (folder / "bad_images.csv").exists():
        print(f"  some images cannot be read: {folder / 'bad_images.csv'}")
    if (folder / "clusters.csv").exists():
        last = "" if result.fitted.best_step is not None else "the last model is kept, in model/; "
        print(f"  without labels {last}clusters.csv names the clusters")
        return
    print(f"  score it:  cbml evaluate {folder}")
