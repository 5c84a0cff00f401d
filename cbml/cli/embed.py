"""`cbml embed`: pictures as plain arrays of vectors."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from cbml.models import Embedder

__all__ = ["model_folder", "open_model", "verb"]


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
    out: Annotated[Path, typer.Option(help="The file to write, .npz or .parquet.")],
    split: Annotated[
        Literal["all", "train", "test"], typer.Option(help="Which half, as cbml train cuts it.")
    ] = "all",
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept a set that is not whole.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> None:
    """Write the vectors of pictures to a file: vectors, paths, names and labels.

    The .npz file holds plain arrays: np.load(file)["vectors"] is float32 of shape (N, D), each row
    of length 1. Files that cannot be read are left out and listed in bad_images.csv beside it.

    \b
    Examples:
      cbml embed runs/emoji my-pictures/ --out vectors.npz
      cbml embed resnet50 trees.csv --out vectors.parquet --json
    """
    from cbml.errors import BadData
    from cbml.gallery import list_pictures
    from cbml.gallery.vectors import embed_files, write_vectors

    if out.suffix not in (".npz", ".parquet"):
        raise BadData(f"--out {out}: must end in .npz or .parquet")
    listed = list_pictures(pictures, split=split, allow_partial=allow_partial)
    done = embed_files(open_model(run), listed)
    write_vectors(out, done)
    facts: dict[str, Any] = {
        "file": str(out),
        "pictures": len(done.listed),
        "dim": int(done.vectors.shape[1]),
        "bad": [list(row) for row in done.bad],
    }
    if as_json:
        print(json.dumps(facts))
        return
    print(f"{out}: {facts['pictures']:,} vectors of {facts['dim']} numbers")
    if done.bad:
        print(f"  {len(done.bad):,} files cannot be read: {out.parent / 'bad_images.csv'}")


def open_model(run: str) -> "Embedder":
    """The model of a run's folder, of a saved model's folder, or of a backbone's name.

    Args:
        run: what the user gave.
    """
    from cbml.models import BACKBONES, Embedder

    folder = Path(run)
    if not folder.exists() and (run in BACKBONES or run.startswith("timm:")):
        return Embedder(run).eval()
    return Embedder.load(model_folder(folder))


def model_folder(run: Path) -> Path:
    """Where the model of a run's folder lies, or a saved model's folder itself.

    Args:
        run: what the user gave.
    """
    from cbml.errors import BadData

    if not run.is_dir():
        raise BadData(f"{run}: no such folder of a run or of a saved model")
    inner = run / "model"
    if (run / "run.json").exists() and not (inner / "manifest.json").exists():
        raise BadData(f"{run}: has no trained model yet; go on with:  cbml train --resume {run}")
    return inner if inner.is_dir() else run
