"""`cbml index`: a searchable gallery of pictures."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from cbml.gallery import Built

__all__ = ["verb"]


def verb(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run's folder, a saved model's, or a backbone's name."
        ),
    ],
    pictures: Annotated[
        str,
        typer.Argument(metavar="PICTURES", help="A folder, an archive, a table, or a set's name."),
    ],
    out: Annotated[Path, typer.Option(help="The gallery's folder.")],
    split: Annotated[
        Literal["all", "train", "test"], typer.Option(help="Which half, as cbml train cuts it.")
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
        Literal["flat", "sq8", "hnsw"], typer.Option(help="Of a faiss index; flat is exact.")
    ] = "flat",
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Embed everything anew, as for another model.")
    ] = False,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept a set that is not whole.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Make a gallery of pictures, or bring one up to date.

    Labels are taken from subfolders, where there are any. Run it again whenever pictures have
    come, gone or changed: only new and changed files are embedded. Ctrl-C is safe; the same
    command goes on where it stopped.

    \b
    Examples:
      cbml index runs/emoji my-pictures/ --out gallery
      cbml index runs/emoji emoji --split test --out gallery --json
      cbml index efficientnet_lite0 my-pictures/ --out gallery --store milvus:http://host:19530
    """
    from cbml.bayes import MatchProbability
    from cbml.cli.embed import open_model
    from cbml.evaluation import evaluate
    from cbml.gallery import Settings, build, list_pictures

    listed = list_pictures(pictures, split=split, allow_partial=allow_partial)
    calibration = Path(run) / "calibration.json"
    settings = Settings(
        source=pictures,
        store=store,
        kind=kind,
        token=os.environ.get("CBML_STORE_TOKEN"),
        rebuild=rebuild,
    )
    built = build(
        open_model(run),
        listed,
        out,
        evaluate=evaluate,
        calibration=MatchProbability.load(calibration) if calibration.is_file() else None,
        settings=settings,
    )
    if as_json:
        print(json.dumps({"gallery": str(out), **built.as_dict()}))
    else:
        _print_built(out, built)


def _print_built(out: Path, built: "Built") -> None:
    kinds = f" of {built.labels:,} labels" if built.labels else ", without labels"
    print(f"{out}: {built.pictures:,} pictures{kinds}")
    print(
        f"  {built.embedded:,} embedded, {built.kept:,} kept ({built.renamed:,} renamed), "
        f"{built.removed:,} removed"
    )
    if built.duplicates:
        print(f"  {built.duplicates:,} have the content of another one")
    if built.bad:
        print(f"  {len(built.bad):,} files cannot be read: {out / 'bad_images.csv'}")
    print(f"  look at it:  cbml serve {out}")
