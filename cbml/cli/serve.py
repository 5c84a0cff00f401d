"""`cbml serve`: a gallery as a page and an HTTP service."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["verb"]


def verb(
    gallery: Annotated[Path, typer.Argument(metavar="GALLERY", help="Made by cbml index.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any that is free.")] = 8000,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="GALLERY", help="A second gallery of the same pictures."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name browsers may call this machine by; * for any."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a gallery in the browser, and answer programs over HTTP.

    Nobody but this machine can reach it unless --host says so; there are no passwords. Ctrl-C
    stops it. What it answers is described at /api/v1/openapi.json.

    \b
    Examples:
      cbml serve gallery --open
      cbml serve gallery --port 8080 --compare gallery-of-another-model
      cbml serve gallery --host 0.0.0.0 --allow-host pictures.example.org
    """
    from cbml.errors import MissingExtra
    from cbml.gallery import Gallery

    try:
        from cbml.gallery.guard import allowed_hosts
        from cbml.gallery.server import listen, serve_app
        from cbml.gallery.service import make_app
    except ImportError as error:
        raise MissingExtra(str(error.name), "serve") from None
    token = os.environ.get("CBML_STORE_TOKEN")
    opened = Gallery(gallery, token=token)
    second = None if compare is None else Gallery(compare, token=token)
    app = make_app(opened, hosts=allowed_hosts(host, allow_host or ()), compare=second)
    listening = listen(host, port)
    for one in (opened, second):
        if one is not None:
            one.warm_up()
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"

    def started() -> None:
        print(
            f"{opened.name}, {len(opened):,} pictures: {address}  (Ctrl-C stops)", file=sys.stderr
        )
        sys.stderr.flush()
        if open_page:
            import webbrowser

            webbrowser.open(address)

    serve_app(app, listening, started=started)
