"""`cbml search`: the images of a gallery nearest to an image."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cbml.cli.options import AsJson, GalleryFolder, OwnBackbone

if TYPE_CHECKING:
    from cbml.gallery import SearchResponse

_WIDE = 10_000


def verb(
    gallery: GalleryFolder,
    queries: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[IMAGE]...", help="Files to search with.", show_default=False),
    ] = None,
    ids: Annotated[
        list[int] | None,
        typer.Option("--id", help="Search with this image of the gallery; may be repeated."),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of results.")] = 10,
    min_probability: Annotated[
        float | None, typer.Option(help="Only results with at least this match probability.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Only results with this label; case does not matter.")
    ] = None,
    text: Annotated[str, typer.Option(help="Only results whose name or label contains this.")] = "",
    hide_duplicates: Annotated[
        bool, typer.Option("--hide-duplicates", help="Leave out near-duplicates.")
    ] = False,
    sort: Annotated[
        Literal["similarity", "probability"], typer.Option(help="Order of the results.")
    ] = "similarity",
    html: Annotated[
        Path | None,
        typer.Option(help="Write the results to this file, as a page that contains the images."),
    ] = None,
    as_json: AsJson = False,
    backbone: OwnBackbone = None,
) -> None:
    """Search a gallery with images.

    \b
    Examples:
      cbml search gallery query.jpg --k 10
      cbml search gallery a.jpg b.jpg --min-probability 0.9 --json
      cbml search gallery --id 7 --hide-duplicates --html results.html
    """
    from cbml.gallery import Gallery, SearchOptions
    from cbml.runs import use_backbone

    if not (queries or ids):
        raise typer.BadParameter("give an image to search with, or --id of one in the gallery")
    use_backbone(backbone)
    options = SearchOptions(
        k=k,
        min_probability=min_probability,
        label=label,
        text=text,
        hide_duplicates=hide_duplicates,
        sort=sort,
    )
    with Gallery(gallery, token=os.environ.get("CBML_STORE_TOKEN")) as opened:
        queried = [(str(path), opened.query(path)) for path in queries or []]
        for image_id in ids or []:
            query = opened.image_query(image_id)
            queried.append((opened.images[query.index or 0].path, query))
        responses = [(path, opened.search(query, options)) for path, query in queried]
        if html is not None:
            from cbml.gallery import write_html

            write_html(html, opened, responses)
    if as_json:
        print(json.dumps([{"image": path, **response.as_dict()} for path, response in responses]))
        return
    for path, response in responses:
        _print_table(path, response)
    if html is not None:
        print(f"written: {html}")


def _print_table(path: str, response: "SearchResponse") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = response.results
    columns = ["rank", "similarity", "probability", "label", "id", "name"]
    if all(row.probability is None for row in rows):
        columns.remove("probability")
    if not any(row.label for row in rows):
        columns.remove("label")
    # As text: a name like [red] is a name, not a color.
    table = Table(title=Text(_printable(path)), title_justify="left")
    for column in columns:
        text = column in ("label", "name")  # whole: names end in what differs
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    marks = {True: " ✓", False: " ✗", None: ""}
    for row in rows:
        cells = {
            "rank": "" if row.rank is None else str(row.rank),
            "similarity": f"{row.similarity:.4f}",
            "probability": "" if row.probability is None else f"{row.probability:.3f}",
            "label": _printable(row.label or "") + marks[row.relevant],
            "id": str(row.id),
            "name": _printable(row.name),
        }
        table.add_row(*(Text(cells[column]) for column in columns))
    # A file or a pipe has no width to fit into.
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(highlight=False, markup=False, width=width)
    if rows:
        console.print(table)
    else:
        console.print(f"{_printable(path)}: nothing found with these filters")
    if response.query.average_precision is not None:
        console.print(
            f"first hit at rank {response.query.first_hit_rank}, average precision "
            f"{response.query.average_precision:.3f}, {response.query.positives} positives"
        )


def _printable(text: str) -> str:
    """Without line breaks and control characters, which a name may hold to play tricks."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)
