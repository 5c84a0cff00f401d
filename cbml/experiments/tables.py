"""All tables by name, and the rows of the figures, which are tables as well."""

import difflib

from cbml.errors import BadData
from cbml.experiments.ablation import LOSS_ABLATION
from cbml.experiments.comparisons import COMPARISONS
from cbml.experiments.figure_rows import EXAMPLES, GAMMA, GAP, SIMILARITY, TERMS
from cbml.experiments.pseudo_tables import PSEUDO_TABLES
from cbml.experiments.rows import Table
from cbml.experiments.studies import STUDIES

__all__ = ["FIGURE_TABLES", "TABLES", "find_table"]

TABLES: dict[str, Table] = {
    table.name: table for table in (LOSS_ABLATION, *COMPARISONS, *STUDIES, *PSEUDO_TABLES)
}
FIGURE_TABLES: dict[str, Table] = {
    table.name: table for table in (GAP, SIMILARITY, TERMS, GAMMA, EXAMPLES)
}


def find_table(name: str) -> Table:
    """The table or figure of that name.

    Args:
        name: as on the command line.
    """
    known = TABLES | FIGURE_TABLES
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}"
        raise BadData(f"{name!r}: no such table or figure; {hint}")
    return known[name]
