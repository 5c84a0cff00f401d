"""Records as tables: ours beside the published numbers, one table for each scale and protocol."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cbml.experiments.published import PUBLISHED_ONLY, published_scores
from cbml.experiments.records import Record
from cbml.experiments.rows import DATA_NAMES, Key, Row, Table
from cbml.experiments.statistics import Estimate, estimate

__all__ = ["Block", "Line", "as_markdown", "table_blocks"]

# Scale, picture set, protocol, backbone and steps.
_Place = tuple[str, str, str, str, int]


@dataclass(frozen=True)
class Line:
    """A row of ours, of the paper, or of both.

    Args:
        label: of the row, with what was changed in it.
        rate: learning rate, as text; empty where the seeds differ in it or nothing is ours.
        ours: column -> mean over seeds, in percent.
        published: column -> percent.
        network: of the published numbers.
    """

    label: str
    rate: str
    ours: Mapping[str, Estimate]
    published: Mapping[str, float]
    network: str = ""


@dataclass(frozen=True)
class Block:
    """What may stand in one table: one picture set, scale, protocol, and at the laptop scale one
    network and length of training.

    Args:
        title: says all of it.
        columns: of the scores.
        lines: the rows.
        same_pictures: whether published numbers are of the same pictures and network.
        without: published methods that have no recipe of ours -> why.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    same_pictures: bool
    without: Mapping[str, str]


def table_blocks(table: Table, records: Iterable[Record]) -> list[Block]:
    """The tables to print; that of the published numbers alone where nothing is ours.

    Args:
        table: the rows.
        records: of any tables; trials are passed over.
    """
    groups: dict[_Place, list[Record]] = {}
    for record in records:
        if record["table"] == table.name and not record["trial"]:
            groups.setdefault(_place(record), []).append(record)
    if not groups:
        return _published_blocks(table)
    return [_block(table, place, found) for place, found in sorted(groups.items())]


def _place(record: Record) -> _Place:
    """What records must share to stand in one table.

    At the full scale the labels name the backbone, as the paper's tables do; at the laptop scale
    another network or another length of training is another table.
    """
    settings, scale = record["settings"], record["scale"]
    alike = (settings["backbone"], int(settings["steps"] or 0)) if scale == "laptop" else ("", 0)
    return scale, record["data"], record["protocol"], *alike


def _block(table: Table, place: _Place, records: Sequence[Record]) -> Block:
    scale, data, protocol = place[:3]
    laptop = scale == "laptop"
    found = table.laptop_rows(data) if laptop else [row for row in table.rows if row.data == data]
    rows = {row.label(scale): row for row in found}
    order = {label: number for number, label in enumerate(rows)}
    groups: dict[tuple[str, tuple[str, ...], str], list[Record]] = {}
    for record in records:
        # Seeds of one line must differ in nothing else, such as a rate chosen later.
        alike = json.dumps(record["settings"] | {"seed": None}, sort_keys=True)
        name = (record["row"], tuple(record["overrides"]), alike)
        groups.setdefault(name, []).append(record)
    places = sorted(groups, key=lambda name: (order.get(name[0], len(order)), name))
    lines = [_line(table, *name[:2], groups[name], rows.get(name[0])) for name in places]
    ours = {rows[label].published for label, *_ in groups if label in rows}
    without: dict[str, str] = {}
    for key, line in _others(table, table.like(data) if laptop else data):
        reason = PUBLISHED_ONLY.get(key[1])
        if reason is not None:
            without[key[1]] = reason
        if key not in ours and (reason is not None or not laptop):
            lines.append(line)
    optimistic = ": chosen on the test, optimistic" if protocol == "paper" else ""
    steps = sorted({int(record["settings"]["steps"] or 0) for record in records})
    title = f"{scale} scale, {DATA_NAMES.get(data, data)}, protocol {protocol}{optimistic}"
    networks = sorted({str(record["settings"]["backbone"]) for record in records})
    described = f"{title}; {_listed(networks)}, {_listed(steps)} steps"
    columns = tuple(
        column for column in _columns(table) if any(_has(line, column) for line in lines)
    )
    return Block(described, columns, tuple(lines), not laptop, without)


def _line(
    table: Table,
    label: str,
    overrides: tuple[str, ...],
    records: Sequence[Record],
    row: Row | None,
) -> Line:
    ours: dict[str, Estimate] = {}
    for column in _columns(table):
        values = [value for record in records if (value := _score(record, column)) is not None]
        if values:
            ours[column] = estimate(values)
    rates = {record["settings"]["learning_rate"] for record in records}
    failed = sum(record["failed"] is not None for record in records)
    changed = f" [{', '.join(overrides)}]" if overrides else ""
    broken = f" ({failed} of {len(records)} broke off)" if failed else ""
    rate = f"{rates.pop():g}" if len(rates) == 1 else ""
    published = {} if row is None or overrides else _published(table, row)
    network = row.published[0] if row is not None and row.published and published else ""
    return Line(f"{label}{changed}{broken}", rate, ours, published, network)


def _columns(table: Table) -> tuple[str, ...]:
    train = any("train" in row.scored for row in table.rows)
    return (*(f"train {name}" for name in table.metrics if train), *table.metrics)


def _score(record: Record, column: str) -> float | None:
    """In percent; columns are named as in the paper."""
    split, _, name = column.rpartition(" ")
    scores: Mapping[str, Any] = record["scores"].get(split or "test") or {}
    key = name.lower() if name in ("NMI", "AMI") else name.replace("R@", "recall@")
    value = scores.get(key)
    return None if value is None else 100.0 * float(value)


def _published(table: Table, row: Row) -> dict[str, float]:
    if table.published is None:
        return {}
    printed = published_scores()[table.published]
    found: dict[str, float] = {}
    if row.published is not None:
        found |= printed.get(row.published, {})
    if row.published_train is not None:
        train = printed.get(row.published_train, {})
        found |= {f"train {name}": value for name, value in train.items()}
    return found


def _others(table: Table, data: str | None) -> list[tuple[Key, Line]]:
    """The published rows of a picture set, or of all."""
    if table.published is None:
        return []
    lines = []
    for key, scores in published_scores()[table.published].items():
        backbone, method, dim, pictures = key
        if data is None or pictures == DATA_NAMES.get(data):
            size = f", {dim}-d" if dim not in ("", "512") else ""
            label = f"{backbone} {method}{size}, {pictures}"
            lines.append((key, Line(label, "", {}, scores, backbone)))
    return lines


def _published_blocks(table: Table) -> list[Block]:
    found = _others(table, None)
    lines = tuple(line for _, line in found)
    columns = tuple(name for name in table.metrics if any(name in line.published for line in lines))
    without = {key[1]: PUBLISHED_ONLY[key[1]] for key, _ in found if key[1] in PUBLISHED_ONLY}
    title = "published numbers; nothing of ours yet"
    return [Block(title, columns, lines, True, without)] if lines else []


def _has(line: Line, column: str) -> bool:
    return column in line.ours or column in line.published


def _listed(things: Sequence[object]) -> str:
    return " and ".join(map(str, things))


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
