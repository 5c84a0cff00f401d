"""`cbml compare`: two runs side by side."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbml.cli.options import AsJson, RunFolder

if TYPE_CHECKING:
    from cbml.runs import Comparison


def verb(
    first: RunFolder,
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another run's folder.")],
    as_json: AsJson = False,
) -> None:
    """Show how the settings and scores of two runs differ.

    Only what the runs have recorded is shown; nothing is computed or evaluated.

    \b
    Examples:
      cbml compare runs/pets-cbml-0 runs/pets-proxy_anchor-0
      cbml compare runs/a runs/b --json
    """
    from cbml.runs import compare_runs

    found = compare_runs(first, second)
    if as_json:
        print(json.dumps(found.as_dict()))
        return
    for note in found.notes:
        print(f"note: {note}")
    for line in _table(found):
        print(line)


def _table(found: "Comparison") -> list[str]:
    """The settings and scores that differ or tell something, in columns as wide as they need."""
    names = [run.name for run in found.runs]
    rows = [("", *(names if names[0] != names[1] else map(str, found.runs)), "change")]
    rows += [(name, *map(str, values), "") for name, values in found.settings.items()]
    for name, (one, two) in found.scores.items():
        if {one, two} <= {1.0, None}:  # as Recall@1000 of few images
            continue
        shown = ["–" if value is None else f"{value:.4f}" for value in (one, two)]
        rows.append((name, *shown, "" if one is None or two is None else f"{two - one:+.4f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{name:<{widths[0]}}  {one:>{widths[1]}}  {two:>{widths[2]}}  {gain}".rstrip()
        for name, one, two, gain in rows
    ]
