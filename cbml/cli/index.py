"""`cbml index`: a searchable gallery of images."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cbml.cli import joined
from cbml.cli.options import (
    AllowPartial,
    AsJson,
    LabelColumn,
    LabelFrom,
    OptionalImages,
    OptionalModel,
    OwnBackbone,
    Part,
    PathColumn,
    Processes,
)
from cbml.program import command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import ProcessGroup

    from cbml.gallery import BuildResult, BuildSettings, ImageRef
    from cbml.models import Embedder
    from cbml.training import Distributed


def verb(
    out: Annotated[Path, typer.Option(help="The gallery's folder.")],
    run: OptionalModel = None,
    images: OptionalImages = None,
    split: Part = "all",
    store: Annotated[
        str | None,
        typer.Option(
            help="Where the vectors live: faiss, milvus:http://host:19530 or milvus:file.db. A "
            "server's password is taken from CBML_STORE_TOKEN.",
            show_default="faiss",
        ),
    ] = None,
    kind: Annotated[
        Literal["flat", "sq8", "pq4"], typer.Option(help="Kind of faiss index; flat is exact.")
    ] = "flat",
    recall: Annotated[
        float | None,
        typer.Option(
            help="Share of the true nearest images that a search must find; for --kind pq4.",
            show_default="0.95",
        ),
    ] = None,
    processes: Processes = 1,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Embed all images again, for example with another model."),
    ] = False,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Remove this image from an existing gallery, without RUN and IMAGES; may be "
            "repeated. Its file stays.",
        ),
    ] = None,
    near_duplicates: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="Write groups of near-duplicate images to this file."
        ),
    ] = None,
    label_from: LabelFrom = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_partial: AllowPartial = False,
    as_json: AsJson = False,
    backbone: OwnBackbone = None,
) -> None:
    """Make a gallery of images, or bring one up to date.

    Folders are read as cbml train reads them: the labels are the subfolders, below train, test and
    the like. Run it again whenever images have been added, deleted or changed: only new and
    changed files are embedded. Ctrl-C is safe; the same command resumes where it stopped.

    \b
    Examples:
      cbml index runs/emoji my-images/ --out gallery
      cbml index runs/emoji emoji --split test --out gallery --json
      cbml index runs/emoji my-images/ --out gallery --kind pq4 --recall 0.9 --processes 4
      cbml index --out gallery --remove "cats/blurred.jpg"
    """
    from cbml.evaluation import evaluate
    from cbml.gallery import BuildSettings, remove_images, write_near_duplicates
    from cbml.runs import use_backbone

    use_backbone(backbone)
    if remove and (run or images):
        raise typer.BadParameter("--remove works on the gallery alone: leave out RUN and IMAGES")
    if recall is not None and (kind != "pq4" or not 0.0 < recall < 1.0):
        raise typer.BadParameter("--recall is a number between 0 and 1, for --kind pq4")
    if remove:
        built = remove_images(out, remove, evaluate=evaluate)
    elif run and images:
        token = os.environ.get("CBML_STORE_TOKEN")
        settings = BuildSettings(
            source=images, store=store, kind=kind, recall=recall, token=token, rebuild=rebuild
        )
        reading = {
            "split": split,
            "allow_partial": allow_partial,
            "label_from": label_from,
            "path_column": path_column,
            "label_column": label_column,
        }
        with joined(processes) as distributed:
            made = _build(run, out, settings, reading, distributed)
        if made is None:
            return  # the main process says what became of it
        built = made
    else:
        raise typer.BadParameter("give RUN and IMAGES, or --remove NAME")
    groups = None if near_duplicates is None else write_near_duplicates(near_duplicates, out)
    if as_json:
        print(json.dumps({"gallery": str(out), **built.as_dict()}))
        return
    _print_result(out, built)
    if groups is not None:
        print(f"  groups of near-duplicates: {groups:,}, listed in {near_duplicates}")


def _build(
    run: str,
    out: Path,
    settings: "BuildSettings",
    reading: "Mapping[str, Any]",
    distributed: "Distributed",
) -> "BuildResult | None":
    """Build the gallery in the main process; the others embed their share, and get None."""
    from cbml.gallery import embed_share, list_images
    from cbml.runs import open_model, run_reading

    model, group = open_model(run), distributed.group
    if group is not None and not distributed.is_main_process:
        embed_share(model, group)
        return None
    refs = list_images(settings.source, **run_reading(run, settings.source, reading))
    return build_gallery(model, run, refs, out, settings, group)


def build_gallery(
    model: "Embedder",
    run: str | Path,
    refs: "list[ImageRef]",
    out: Path,
    settings: "BuildSettings",
    group: "ProcessGroup | None" = None,
) -> "BuildResult":
    """A gallery with scores, and with what the run knows of probabilities and of its images."""
    from cbml.evaluation import evaluate
    from cbml.gallery import build
    from cbml.runs import known_labels, run_calibration, training_paths

    calibration = run_calibration(run)
    known = known_labels(run, {ref.path: ref.label for ref in refs})
    built = build(
        model,
        refs,
        out,
        evaluate=evaluate,
        calibration=calibration,
        trained_on=training_paths(run),
        settings=dataclasses.replace(settings, known_labels=known),
        group=group,
    )
    if calibration is not None and built.images > 1 and not built.probabilities:
        line = f"no match probabilities: those of {run} are wrong for the labels of these images"
        print(line, file=sys.stderr)
    return built


def _search_line(index: dict[str, Any]) -> str:
    """What an approximate index promises, or why it does not approximate."""
    if index["exact"] or not index["nearest"][0]["candidates"]:
        return f"searches exactly: a recall of {index['recall']:g} would be no less work"
    ten = index["nearest"][0]
    return (
        f"searches find {100 * ten['recall']:.1f} % of the ten nearest images, measured with "
        f"{index['measured_with']} of them; asked for {100 * index['recall']:g} %"
    )


def _print_result(out: Path, built: "BuildResult") -> None:
    kinds = f" of {built.labels:,} labels" if built.labels else ", without labels"
    print(f"{out}: {built.images:,} images{kinds}")
    print(
        f"  {built.embedded:,} embedded, {built.kept:,} kept ({built.renamed:,} renamed), "
        f"{built.removed:,} removed"
    )
    if "recall" in built.index:
        print(f"  {_search_line(built.index)}")
    if built.duplicates:
        verb = "has" if built.duplicates == 1 else "have"
        print(f"  {built.duplicates:,} of them {verb} the same content as another one")
    if built.bad:
        print(f"  {len(built.bad):,} files cannot be read: {out / 'bad_images.csv'}")
    print(f"  look at it:  {command('serve', out, '--open')}")
