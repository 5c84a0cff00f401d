"""`cbml index`: a searchable gallery of images."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cbml.cli import OwnBackbone

if TYPE_CHECKING:
    from cbml.gallery import BuildResult, BuildSettings


def verb(
    out: Annotated[Path, typer.Option(help="The gallery's folder.")],
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's folder, a saved model's, or a backbone's name.",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Argument(
            metavar="IMAGES",
            help="A folder, an archive, a table, or a dataset's name.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        Literal["all", "train", "test"],
        typer.Option(help="Which part, as cbml train splits the images."),
    ] = "all",
    store: Annotated[
        str | None,
        typer.Option(
            help="Where the vectors live: faiss, milvus:http://host:19530 or milvus:file.db. A "
            "server's password is taken from CBML_STORE_TOKEN.",
            show_default="faiss",
        ),
    ] = None,
    kind: Annotated[
        Literal["flat", "sq8", "hnsw"], typer.Option(help="Kind of faiss index; flat is exact.")
    ] = "flat",
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
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept an incomplete dataset.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
    backbone: OwnBackbone = None,
) -> None:
    """Make a gallery of images, or bring one up to date.

    Labels are taken from subfolders, where there are any. Run it again whenever images have been
    added, deleted or changed: only new and changed files are embedded. Ctrl-C is safe; the same
    command resumes where it stopped.

    \b
    Examples:
      cbml index runs/emoji my-images/ --out gallery
      cbml index runs/emoji emoji --split test --out gallery --json
      cbml index --out gallery --remove "cats/blurred.jpg"
    """
    from cbml.evaluation import evaluate
    from cbml.gallery import BuildSettings, remove_images, write_near_duplicates
    from cbml.runs import use_backbone

    use_backbone(backbone)
    if remove and (run or images):
        raise typer.BadParameter("--remove works on the gallery alone: leave out RUN and IMAGES")
    if remove:
        built = remove_images(out, remove, evaluate=evaluate)
    elif run and images:
        settings = BuildSettings(
            source=images,
            store=store,
            kind=kind,
            token=os.environ.get("CBML_STORE_TOKEN"),
            rebuild=rebuild,
        )
        built = _build(run, images, out, split, allow_partial, settings)
    else:
        raise typer.BadParameter("give RUN and IMAGES, or --remove NAME")
    groups = None if near_duplicates is None else write_near_duplicates(near_duplicates, out)
    if as_json:
        print(json.dumps({"gallery": str(out), **built.as_dict()}))
        return
    _print_result(out, built)
    if groups is not None:
        print(f"  {groups:,} groups of near-duplicates: {near_duplicates}")


def _build(
    run: str,
    images: str,
    out: Path,
    split: Literal["all", "train", "test"],
    allow_partial: bool,
    settings: "BuildSettings",
) -> "BuildResult":
    from cbml.evaluation import evaluate
    from cbml.gallery import build, list_images
    from cbml.runs import open_model, run_calibration, training_paths

    refs = list_images(images, split=split, allow_partial=allow_partial)
    return build(
        open_model(run),
        refs,
        out,
        evaluate=evaluate,
        calibration=run_calibration(run),
        trained_on=training_paths(run),
        settings=settings,
    )


def _print_result(out: Path, built: "BuildResult") -> None:
    kinds = f" of {built.labels:,} labels" if built.labels else ", without labels"
    print(f"{out}: {built.images:,} images{kinds}")
    print(
        f"  {built.embedded:,} embedded, {built.kept:,} kept ({built.renamed:,} renamed), "
        f"{built.removed:,} removed"
    )
    if built.duplicates:
        print(f"  {built.duplicates:,} have the same content as another one")
    if built.bad:
        print(f"  {len(built.bad):,} files cannot be read: {out / 'bad_images.csv'}")
    print(f"  look at it:  cbml serve {out}")
