"""The documents whose tables are rendered from records, between two marks."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cbml.errors import BadData
from cbml.experiments.figures import draw_leaderboard
from cbml.experiments.jobs import Record, read_records
from cbml.experiments.leaderboard import (
    leaderboard_figure,
    leaderboard_lines,
    leaderboard_markdown,
    leaderboard_title,
)
from cbml.experiments.rendering import as_markdown, table_blocks
from cbml.experiments.tables import TABLES
from cbml.files import replaced_file

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def all_tables(records: Sequence[Record]) -> str:
    """Every table of the paper that has records."""
    parts = []
    for table in TABLES.values():
        own = [record for record in records if record["table"] == table.name]
        if any(not record["trial"] for record in own):
            parts.append(as_markdown(table, table_blocks(table, own)))
    return "\n".join(parts) if parts else "No records yet.\n"


DOCUMENTS: dict[str, Callable[[Sequence[Record]], str]] = {
    "reproduce.md": all_tables,
    "leaderboard.md": leaderboard_markdown,
}


def rendered(text: str, body: str) -> str:
    """A document with something else between its marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise BadData(f"the document has no {BEGIN} and {END} to put the tables between")
    return f"{head}{begin}\n{body}{end}{tail}"


def render_documents(docs: Path, results: Path) -> None:
    """Bring the tables and figures of all documents up to date with the records of a folder."""
    records = read_records(results)
    for name, render in DOCUMENTS.items():
        document = docs / name
        text = rendered(document.read_text(encoding="utf-8"), render(records))
        with replaced_file(document) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for (data, labels), lines in leaderboard_lines(records).items():
        place = docs / "images" / leaderboard_figure(data, labels)
        draw_leaderboard(lines, leaderboard_title(data, labels), place)


if __name__ == "__main__":
    render_documents(Path(sys.argv[1]), Path(sys.argv[2]))
