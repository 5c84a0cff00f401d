"""`cbml compare`: two runs side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cbml.cli.options import AsJson, RunFolder


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
    print(f"{'':<28} {first.name:>16} {second.name:>16}")
    for name, values in found.settings.items():
        print(f"{name:<28} {' '.join(f'{value!s:>16}' for value in values)}")
    for name, (one, two) in found.scores.items():
        shown = ["–" if value is None else f"{value:.4f}" for value in (one, two)]
        gain = "" if one is None or two is None else f"  {two - one:+.4f}"
        print(f"{name:<28} {shown[0]:>16} {shown[1]:>16}{gain}")
    for note in found.notes:
        print(f"note: {note}")
