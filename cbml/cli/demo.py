"""`cbml demo`: what it does, on real images, in minutes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbml.cli import resumable
from cbml.cli.options import AsJson, Seed
from cbml.program import command

if TYPE_CHECKING:
    from cbml.models import Embedder
    from cbml.runs import Demonstration


def verb(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo writes.")] = Path(
        "cbml-demo"
    ),
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps.", min=1, show_default="100")
    ] = None,
    seed: Seed = 0,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the gallery afterwards and open its page.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train on half of the emoji and search the other half.

    Takes minutes on two CPU cores; nothing is downloaded. Ctrl-C is safe: the same command resumes
    where it stopped, and once everything is done it only shows the result.

    \b
    Examples:
      cbml demo
      cbml demo --out /tmp/demo --steps 20 --serve
    """
    from cbml.runs import RunConfig, demonstrate
    from cbml.training import ProgressCallback

    chosen = {"steps": steps, "seed": seed or None}
    given = {name: value for name, value in chosen.items() if value is not None}
    options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    again = command("demo", "--out", out, *options)
    config, callback = RunConfig("emoji", training=given), ProgressCallback()
    with resumable(f"resume with:  {again}"):
        found = demonstrate(out, make_gallery=_make_gallery, config=config, callback=callback)
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        _print_end(found)
    if serve:
        from cbml.cli.serve import verb as serve_gallery

        serve_gallery(out / "gallery", open_page=True)


def _make_gallery(model: "Embedder", run: Path, folder: Path) -> None:
    from cbml.cli.index import build_gallery
    from cbml.gallery import BuildSettings, list_images

    refs = list_images("emoji", split="test")
    build_gallery(model, run, refs, folder, BuildSettings(source="emoji"))


def _print_end(found: "Demonstration") -> None:
    print(found.sentence)
    print(f"All of it in one page:  {found.folder / 'report.html'}")
    gallery = found.folder / "gallery"
    print("Try next:")
    print(f"  {command('serve', gallery, '--open')}    # search by clicking")
    print(f"  {command('search', gallery, '--id', found.example)}    # or from here")
    own = command("train", "my-images/")
    print(f"  {own}    # your own images, with a subfolder for each class")
