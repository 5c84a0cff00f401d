"""`cbml export`: a trained model as a file for other programs."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from cbml.cli.options import AsJson, OwnBackbone, SavedModel


def verb(
    run: SavedModel,
    format: Annotated[Literal["onnx"], typer.Option("--format", help="What to write.")] = "onnx",
    output: Annotated[
        Path | None, typer.Option("--output", help="The file to write; RUN/model.onnx by default.")
    ] = None,
    preprocessing_inside: Annotated[
        bool,
        typer.Option(
            "--preprocessing-inside", help="Put the normalization into the file: uint8 input."
        ),
    ] = False,
    as_json: AsJson = False,
    backbone: OwnBackbone = None,
) -> None:
    """Export a model to ONNX, checked against torch on real images.

    \b
    Examples:
      cbml export runs/cub --format onnx
      cbml export runs/cub/model --output birds.onnx --preprocessing-inside --json
    """
    from cbml.models import export_onnx
    from cbml.runs import open_model, use_backbone

    use_backbone(backbone)
    model = open_model(run)
    path = output or run / f"model.{format}"
    print(f"exporting {model.backbone_name} to {path}", file=sys.stderr)
    done = export_onnx(model, path, preprocessing_inside=preprocessing_inside)
    result = {
        "path": str(done.path),
        "format": format,
        "bytes": done.size,
        "preprocessing_inside": done.preprocessing_inside,
        "images_compared": done.images,
        "largest_difference": done.largest_difference,
    }
    if as_json:
        print(json.dumps(result))
    else:
        print(
            f"{done.path}: {done.size / 1e6:.1f} MB, differs from torch by at most "
            f"{done.largest_difference:.1e} on {done.images} images"
        )
