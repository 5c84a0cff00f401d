"""`cbml serve`: a gallery as a page and an HTTP service."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cbml.cli.options import GalleryFolder, OwnBackbone
from cbml.program import program_name


def verb(
    gallery: GalleryFolder,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one.")] = 8000,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="GALLERY", help="Another gallery of the same images, to compare with."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name that requests may use; * for any."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="CBML_TOKEN",
            help="Token that every request must carry. On a network, one is made and printed "
            "unless you give your own.",
            show_default=False,
        ),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Serve a network without asking for a token.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    backbone: OwnBackbone = None,
) -> None:
    """Serve a gallery: a web page and an HTTP API.

    Only this machine can reach it unless --host says otherwise; then requests need a token.
    A gallery that is brought up to date while it is served is picked up. Ctrl-C stops it. The API
    is described at /api/v1/openapi.json.

    \b
    Examples:
      cbml serve gallery --open
      cbml serve gallery --port 8080 --compare gallery-of-another-model
      cbml serve gallery --host 0.0.0.0 --allow-host images.example.org
    """
    from cbml.errors import MissingExtra
    from cbml.gallery import Gallery
    from cbml.runs import use_backbone

    try:
        from cbml.gallery import allowed_hosts, is_loopback, listen, make_service, serve_app
    except ImportError as error:
        raise MissingExtra(str(error.name), "serve") from None
    use_backbone(backbone)
    store_token = os.environ.get("CBML_STORE_TOKEN")
    opened = Gallery(gallery, token=store_token)
    second = None if compare is None else Gallery(compare, token=store_token)
    token = _chosen_token(host, token, no_token)
    listening = listen(host, port)
    hosts = allowed_hosts(host, allow_host or ())
    # Who reads the page on another machine does not stand where this program was started.
    program = program_name() if is_loopback(host) else "cbml"
    service, app = make_service(opened, hosts=hosts, compare=second, token=token, program=program)
    service.warm_up()
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"

    def started() -> None:
        print(f"{opened.name}, {len(opened):,} images: {address}  (Ctrl-C stops)", file=sys.stderr)
        if token is not None:
            print(f"  token: {token}", file=sys.stderr)
            print(f"  with the token:  {address}#token={token}", file=sys.stderr)
        sys.stderr.flush()
        if open_page:
            import webbrowser

            if not webbrowser.open(address if token is None else f"{address}#token={token}"):
                print("  no browser opened here: open the address yourself", file=sys.stderr)

    try:
        serve_app(app, listening, started=started)
    finally:
        service.close()


def _chosen_token(host: str, token: str | None, no_token: bool) -> str | None:
    """The token of the service: the given one, a new one beyond this machine, or none."""
    import secrets

    from cbml.gallery import is_loopback

    if token is not None and no_token:
        raise typer.BadParameter("give either --token or --no-token")
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= 8):
        raise typer.BadParameter("--token: use at least 8 letters, digits and signs")
    if token is not None or is_loopback(host):
        return token
    if no_token:
        print("warning: everybody who reaches this port can see all images", file=sys.stderr)
        return None
    return secrets.token_urlsafe(24)
