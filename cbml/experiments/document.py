"""docs/reproduce.md: what stands between its two marks is rendered from records."""

import sys
from pathlib import Path

from cbml.errors import BadData
from cbml.experiments.markdown import as_markdown
from cbml.experiments.records import read_records
from cbml.experiments.rendering import table_blocks
from cbml.experiments.tables import TABLES
from cbml.files import replaced_file

__all__ = ["render_document", "rendered"]

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def rendered(text: str, results: Path) -> str:
    """A document with the tables of the records between its marks.

    Args:
        text: of the document.
        results: folder of the records.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise BadData(f"the document has no {BEGIN} and {END} to put the tables between")
    records = read_records(results)
    parts = []
    for table in TABLES.values():
        own = [record for record in records if record["table"] == table.name]
        if any(not record["trial"] for record in own):
            parts.append(as_markdown(table, table_blocks(table, own)))
    body = "\n".join(parts) if parts else "No records yet.\n"
    return f"{head}{begin}\n{body}{end}{tail}"


def render_document(document: Path, results: Path) -> None:
    """Bring a document's tables up to date.

    Args:
        document: to rewrite.
        results: folder of the records.
    """
    text = rendered(document.read_text(encoding="utf-8"), results)
    with replaced_file(document) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    render_document(Path(sys.argv[1]), Path(sys.argv[2]))
