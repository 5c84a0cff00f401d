"""The documents whose tables and figures are rendered from records, between two marks."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cbml.errors import BadData
from cbml.experiments.figures import STYLE, open_pyplot, save_png
from cbml.experiments.jobs import Record, read_records
from cbml.experiments.leaderboard import (
    Line,
    leaderboard_figure,
    leaderboard_lines,
    leaderboard_markdown,
    leaderboard_title,
)
from cbml.experiments.rendering import as_markdown, table_blocks
from cbml.experiments.tables import TABLES
from cbml.files import replaced_file
from cbml.regular import read_text

_OURS, _OTHERS = "#08519c", "#737373"
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


def draw_leaderboard(lines: Sequence[Line], title: str, path: Path) -> None:
    """Recall@1 of all entries with their intervals, the best on top, and their time beside it."""
    pyplot = open_pyplot()
    shown = [(line, line.recall) for line in reversed(lines) if line.recall]
    positions = range(len(shown))
    with pyplot.rc_context(STYLE):
        figure, (scores, times) = pyplot.subplots(
            1, 2, figsize=(8, 1.4 + 0.2 * len(shown)), sharey=True, width_ratios=[3, 1]
        )
        for at, (line, recall) in zip(positions, shown, strict=True):
            color = _OURS if line.name == "cbml" else _OTHERS
            width = recall.half_width or None
            scores.errorbar(recall.mean, at, xerr=width, fmt="o", color=color, capsize=2)
            if line.seconds:
                times.plot([0, line.seconds], [at, at], color=color, linewidth=4)
        scores.set_yticks(positions, [line.name for line, _ in shown], fontsize=8)
        scores.set_ylim(-0.7, len(shown) - 0.3)
        scores.set_xlabel("Recall@1 on unseen classes, %")
        times.set_xlim(left=0)
        times.set_xlabel("seconds per step")
        figure.suptitle(title, fontsize=11)
        save_png(pyplot, figure, path)


def render_documents(docs: Path, results: Path) -> None:
    """Bring the tables and figures of all documents up to date with the records of a folder."""
    records = read_records(results)
    for name, render in DOCUMENTS.items():
        document = docs / name
        text = rendered(read_text(document), render(records))
        with replaced_file(document) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for (data, labels), lines in leaderboard_lines(records).items():
        path = docs / "images" / leaderboard_figure(data, labels)
        draw_leaderboard(lines, leaderboard_title(data, labels), path)


if __name__ == "__main__":
    render_documents(Path(sys.argv[1]), Path(sys.argv[2]))
