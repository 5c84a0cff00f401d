"""Tables of ours beside the published numbers, as Markdown."""

from collections.abc import Sequence

from cbml.experiments.rendering import Block
from cbml.experiments.rows import Table

__all__ = ["as_markdown"]


def as_markdown(table: Table, blocks: Sequence[Block]) -> str:
    """The tables in Markdown.

    Args:
        table: gives the heading.
        blocks: of `table_blocks`.
    """
    parts = [f"### {table.name}", "", f"{table.title}."]
    for block in blocks:
        parts += ["", f"**{block.title[0].upper()}{block.title[1:]}**", "", *_grid(block)]
        if not block.same_pictures and any(line.published for line in block.lines):
            parts += [
                "",
                "The paper's numbers are for its own pictures, network and length of training: "
                "compare the order within one network, not the values.",
            ]
        reasons: dict[str, list[str]] = {}
        for method, reason in block.without.items():
            reasons.setdefault(reason, []).append(method)
        if reasons:
            told = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
            parts += ["", f"Published only: {told}."]
    if not blocks:
        parts += ["", "The paper prints no numbers for it, and there are none of ours yet."]
    return "\n".join(parts) + "\n"


def _grid(block: Block) -> list[str]:
    ours = any(line.ours for line in block.lines)
    printed = [c for c in block.columns if any(c in line.published for line in block.lines)]
    heads = ["row", *(["seeds", "rate", *block.columns] if ours else [])]
    networks = {line.network for line in block.lines if line.network}
    several = ours and not block.same_pictures and len(networks) > 1
    heads += [*(["paper's network"] if several else []), *(f"paper {column}" for column in printed)]
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join(rule) + "|"]
    for line in block.lines:
        count = max((value.count for value in line.ours.values()), default=0)
        cells = [line.label]
        if ours:
            cells += [str(count or "–"), line.rate or "–"]
            cells += [str(line.ours.get(column, "–")) for column in block.columns]
        cells += [line.network or "–"] if several else []
        cells += [f"{line.published[c]:.1f}" if c in line.published else "–" for c in printed]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
