"""`cbml table`: our numbers beside the published ones."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cbml.cli.options import AsJson

DEFAULT = Path("reproduction")


def verb(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A name that `cbml reproduce --list` shows.")
    ],
    records: Annotated[
        Path, typer.Option(help="Folder or file of records, such as results.")
    ] = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print a table of recorded runs in Markdown.

    Our means over seeds with 95 % intervals stand beside the paper's numbers. Each scale, dataset
    and model selection has a table of its own. Scores are percent; one seed has no interval.

    \b
    Examples:
      cbml table loss-ablation
      cbml table loss-ablation --records results --json
      cbml table leaderboard --records results
    """
    import dataclasses

    from cbml.experiments import (
        LEADERBOARD,
        as_markdown,
        find_table,
        leaderboard_markdown,
        read_records,
        table_blocks,
    )

    found = None if table == LEADERBOARD else find_table(table)
    if not records.exists() and records != DEFAULT:
        from cbml.errors import BadData

        raise BadData(f"--records {records}: no such file or folder")
    if found is None:
        text = leaderboard_markdown(read_records(records))
        print(json.dumps({"table": table, "markdown": text}) if as_json else text)
        return
    blocks = table_blocks(found, read_records(records))
    if as_json:
        print(json.dumps({"table": found.name, "blocks": [dataclasses.asdict(b) for b in blocks]}))
    else:
        print(as_markdown(found, blocks), end="")
