"""All tables by name."""

import difflib

from cbml.errors import BadData
from cbml.experiments.ablation import LOSS_ABLATION
from cbml.experiments.comparisons import COMPARISONS
from cbml.experiments.pseudo_tables import PSEUDO_TABLES
from cbml.experiments.rows import Table
from cbml.experiments.studies import STUDIES

__all__ = ["TABLES", "find_table"]

TABLES: dict[str, Table] = {
    table.name: table for table in (LOSS_ABLATION, *COMPARISONS, *STUDIES, *PSEUDO_TABLES)
}


def find_table(name: str) -> Table:
    """The table of that name.

    Args:
        name: as on the command line.
    """
    if name not in TABLES:
        near = difflib.get_close_matches(name, TABLES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(TABLES)}"
        raise BadData(f"table {name!r}: no such table; {hint}")
    return TABLES[name]
