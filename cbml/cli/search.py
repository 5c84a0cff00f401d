"""`cbml search`: the pictures of a gallery that are like a picture."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cbml.gallery import Answer

__all__ = ["verb"]


def verb(
    gallery: Annotated[Path, typer.Argument(metavar="GALLERY", help="Made by cbml index.")],
    queries: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PICTURE]...", help="Files to search with.", show_default=False),
    ] = None,
    ids: Annotated[
        list[int] | None,
        typer.Option("--id", help="Search with this picture of the gallery; may be repeated."),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="Results wanted.")] = 10,
    min_probability: Annotated[
        float | None, typer.Option(help="Only results at least so probable.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Only results of this label.")] = None,
    text: Annotated[str, typer.Option(help="Only results whose name or label holds this.")] = "",
    hide_duplicates: Annotated[
        bool, typer.Option("--hide-duplicates", help="Leave out what looks like a better result.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the pictures inside to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Search a gallery with pictures.

    \b
    Examples:
      cbml search gallery query.jpg --k 10
      cbml search gallery a.jpg b.jpg --min-probability 0.9 --json
      cbml search gallery --id 7 --hide-duplicates --html results.html
    """
    from cbml.gallery import Gallery, Wish

    if not (queries or ids):
        raise typer.BadParameter("give a picture to search with, or --id of one in the gallery")
    wish = Wish(
        k=k,
        min_probability=min_probability,
        label=label,
        text=text,
        hide_duplicates=hide_duplicates,
    )
    with Gallery(gallery, token=os.environ.get("CBML_STORE_TOKEN")) as opened:
        asked = [(str(path), opened.query(path)) for path in queries or []]
        for number in ids or []:
            query = opened.picture_query(number)
            asked.append((opened.pictures[query.place or 0].path, query))
        answers = [(path, opened.search(query, wish)) for path, query in asked]
        if html is not None:
            from cbml.gallery.html import write_html

            write_html(html, opened, answers)
    if as_json:
        print(json.dumps([{"picture": path, **answer.as_dict()} for path, answer in answers]))
        return
    for path, answer in answers:
        _print_table(path, answer)
    if html is not None:
        print(f"written: {html}")


def _print_table(path: str, answer: "Answer") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = answer.results
    columns = ["rank", "similarity", "probability", "label", "id", "name"]
    if all(row.probability is None for row in rows):
        columns.remove("probability")
    # As text: a name like [red] is a name, not a colour.
    table = Table(title=Text(_printable(path)), title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("label", "name") else "right")
    marks = {True: " ✓", False: " ✗", None: ""}
    for row in rows:
        cells = {
            "rank": "" if row.rank is None else str(row.rank),
            "similarity": f"{row.similarity:.4f}",
            "probability": "" if row.probability is None else f"{row.probability:.3f}",
            "label": _printable(row.label or "") + marks[row.correct],
            "id": str(row.id),
            "name": _printable(row.name),
        }
        table.add_row(*(Text(cells[column]) for column in columns))
    console = Console(highlight=False, markup=False)
    if rows:
        console.print(table)
    else:
        console.print(f"{_printable(path)}: nothing found that fits what was asked for")
    if answer.query.average_precision is not None:
        console.print(
            f"first hit at rank {answer.query.first_hit_rank}, average precision "
            f"{answer.query.average_precision:.3f}, {answer.query.positives} positives"
        )


def _printable(text: str) -> str:
    """Without line breaks and control characters, which a name may hold to play tricks."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)
