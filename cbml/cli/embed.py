"""`cbml embed`: images as plain arrays of vectors."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cbml.cli import joined
from cbml.cli.options import (
    AllowPartial,
    AsJson,
    Images,
    LabelColumn,
    LabelFrom,
    Model,
    OwnBackbone,
    Part,
    PathColumn,
    Processes,
)


def verb(
    run: Model,
    images: Images,
    out: Annotated[Path, typer.Option(help="The file to write, .npz or .parquet.")],
    split: Part = "all",
    label_from: LabelFrom = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_partial: AllowPartial = False,
    processes: Processes = 1,
    as_json: AsJson = False,
    backbone: OwnBackbone = None,
) -> None:
    """Write the embeddings of images to a file, with paths and labels.

    The .npz file holds plain arrays: np.load(file)["vectors"] is float32 of shape (N, D), each row
    of length 1. Files that cannot be read are left out and listed in bad_images.csv beside it. The
    same command resumes after an interruption.

    \b
    Examples:
      cbml embed runs/emoji my-images/ --out vectors.npz
      cbml embed resnet50 trees.csv --out vectors.parquet --json
      cbml embed runs/emoji my-images/ --out vectors.npz --processes 4
    """
    from cbml.errors import BadData
    from cbml.gallery import embed_files, embed_share, list_images, write_vectors
    from cbml.runs import open_model, run_reading, use_backbone

    if out.suffix not in (".npz", ".parquet"):
        raise BadData(f"--out {out}: must end in .npz or .parquet")
    use_backbone(backbone)
    with joined(processes) as distributed:
        if distributed.group is not None and not distributed.is_main_process:
            embed_share(open_model(run), distributed.group)
            return
        given = {"split": split, "allow_partial": allow_partial, "label_from": label_from}
        given |= {"path_column": path_column, "label_column": label_column}
        listed = list_images(images, **run_reading(run, images, given))
        done = embed_files(open_model(run), listed, out=out, group=distributed.group)
        write_vectors(out, done)
    result: dict[str, Any] = {
        "file": str(out),
        "images": len(done.refs),
        "dim": int(done.vectors.shape[1]),
        "bad": [list(row) for row in done.bad],
    }
    if as_json:
        print(json.dumps(result))
        return
    print(f"{out}: {result['images']:,} vectors of {result['dim']} numbers")
    if done.bad:
        print(f"  {len(done.bad):,} files cannot be read: {out.parent / 'bad_images.csv'}")
