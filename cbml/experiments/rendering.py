"""Records as tables in Markdown: ours beside the published numbers.

Each scale, dataset and model selection has a table of its own.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from cbml.experiments.jobs import Record
from cbml.experiments.rows import (
    DATA_NAMES,
    PUBLISHED_ONLY,
    Key,
    Row,
    Scale,
    Table,
    published_scores,
)

# Scale, dataset, model selection, backbone, steps and epochs.
_Group = tuple[str, str, str, str, int, int]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        half_width: Half width of the 95 % interval around it; None for a single value.
    """

    mean: float
    half_width: float | None
    count: int

    def __str__(self) -> str:
        around = "" if self.half_width is None else f" ± {self.half_width:.1f}"
        return f"{self.mean:.1f}{around}"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean and its 95 % interval by Student's t over the values.

    mean ± t(n - 1) s / √n,   s² = Σ (x - mean)² / (n - 1)
    """
    count = len(values)
    if not count:
        raise ValueError("values: at least one is needed")
    mean = sum(values) / count
    if count == 1:
        return Estimate(mean, None, 1)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    point = float(stdtrit(count - 1, 0.975))
    return Estimate(mean, point * spread / math.sqrt(count), count)


@dataclass(frozen=True)
class Line:
    """A row of ours, of the paper, or of both.

    Args:
        label: Label of the row, with what was changed in it.
        rate: Learning rate, as text; empty where the seeds differ in it or nothing is ours.
        ours: Column -> mean over seeds, in percent.
    """

    label: str
    rate: str
    ours: Mapping[str, Estimate]
    published: Mapping[str, float]
    network: str = ""


@dataclass(frozen=True)
class Block:
    """What may stand in one table: one dataset, scale, protocol, and at the laptop scale one
    network and length of training.

    Args:
        same_images: Whether published numbers are of the same images and network.
        without: Published methods that have no recipe of ours -> why.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    same_images: bool
    without: Mapping[str, str]


def table_blocks(table: Table, records: Iterable[Record]) -> list[Block]:
    """The tables to print; that of the published numbers alone where nothing is ours.

    Args:
        table: The table, which names its rows.
        records: Records of any tables; trials are passed over.
    """
    groups: dict[_Group, list[Record]] = {}
    for record in records:
        if record["table"] == table.name and not record["trial"]:
            groups.setdefault(_group_of(record), []).append(record)
    if not groups:
        return _published_blocks(table)
    return [_block(table, group, found) for group, found in sorted(groups.items())]


def _group_of(record: Record) -> _Group:
    """What records must share to stand in one table.

    At the full scale the labels name the backbone, as the paper's tables do; at the laptop scale
    another network or another length of training is another table.
    """
    group = record["scale"], record["data"], record["model_selection"]
    return *group, *(_trained(record) if record["scale"] == "laptop" else ("", 0, 0))


def _trained(record: Record) -> tuple[str, int, int]:
    """Network, steps and epochs; one of the last two is given, the other 0."""
    settings = record["settings"]
    return settings["backbone"], int(settings["steps"] or 0), int(settings.get("epochs") or 0)


def _block(table: Table, group: _Group, records: Sequence[Record]) -> Block:
    scale, data = group[:2]
    laptop = scale == "laptop"
    known: Scale = "laptop" if laptop else "full"
    rows = {row.label(known): row for row in table.rows_for(known, data)}
    order = {label: number for number, label in enumerate(rows)}
    # Seeds of one line must differ in nothing else, such as a rate chosen later; and each counts
    # once, though several files may hold its record.
    groups: dict[tuple[str, str, str], dict[int, Record]] = {}
    for record in records:
        alike = json.dumps(record["settings"] | {"seed": None}, sort_keys=True)
        name = (record["row"], _changed(record["overrides"]), alike)
        groups.setdefault(name, {})[record["seed"]] = record
    names = sorted(groups, key=lambda name: (order.get(name[0], len(order)), name))
    lines = [
        _line(table, *name[:2], list(groups[name].values()), rows.get(name[0])) for name in names
    ]
    if not laptop:  # rows that are yet to be run as they are
        unchanged = {label for label, overrides, _ in groups if not overrides}
        lines += [
            Line(label, "", {}, _published(table, row), row.published[0])
            for label, row in rows.items()
            if row.published is not None and label not in unchanged
        ]
    others = _others(table, table.like(data) if laptop else data)
    lines += [line for key, line in others if key[1] in PUBLISHED_ONLY]
    columns = tuple(
        column for column in _columns(table) if any(_has(line, column) for line in lines)
    )
    return Block(_title(group, records), columns, tuple(lines), not laptop, _reasons(others))


def _title(group: _Group, records: Sequence[Record]) -> str:
    scale, data, selection = group[:3]
    chosen = "the test, optimistic" if selection == "test" else "validation classes"
    trained = sorted({_trained(record) for record in records})
    networks = dict.fromkeys(network for network, *_ in trained)
    lengths = dict.fromkeys(
        f"{steps} steps" if steps else f"{epochs} epochs" for _, steps, epochs in trained
    )
    return (
        f"{scale} scale, {DATA_NAMES.get(data, data)}, model chosen on {chosen}; "
        f"{' and '.join(networks)}, {' and '.join(lengths)}"
    )


def _line(
    table: Table,
    label: str,
    overrides: str,
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
    changed = f" [{overrides}]" if overrides else ""
    broken = f" ({failed} of {len(records)} broke off)" if failed else ""
    rate = f"{rates.pop():g}" if len(rates) == 1 else ""
    published = {} if row is None or overrides else _published(table, row)
    network = row.published[0] if row is not None and row.published and published else ""
    return Line(f"{label}{changed}{broken}", rate, ours, published, network)


def _changed(overrides: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in overrides.items())


def _columns(table: Table) -> tuple[str, ...]:
    train = any("train" in row.scored for row in table.rows)
    return (*(f"train {name}" for name in table.metrics if train), *table.metrics)


def _score(record: Record, column: str) -> float | None:
    """In percent; columns are named as in the paper."""
    split, _, name = column.rpartition(" ")
    scores: Mapping[str, Any] = record["scores"].get(split or "test") or {}
    key = name.replace("R@", "recall@") if name.startswith("R@") else name.lower()
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
    """The published rows of a dataset, or of all."""
    if table.published is None:
        return []
    lines = []
    for key, scores in published_scores()[table.published].items():
        backbone, method, dim, images = key
        if data is None or images == DATA_NAMES.get(data):
            size = f", {dim}-d" if dim not in ("", "512") else ""
            label = f"{backbone} {method}{size}, {images}"
            lines.append((key, Line(label, "", {}, scores, backbone)))
    return lines


def _published_blocks(table: Table) -> list[Block]:
    found = _others(table, None)
    lines = tuple(line for _, line in found)
    columns = tuple(name for name in table.metrics if any(name in line.published for line in lines))
    title = "published numbers; nothing of ours yet"
    return [Block(title, columns, lines, True, _reasons(found))] if lines else []


def _reasons(others: Sequence[tuple[Key, Line]]) -> dict[str, str]:
    """The methods among published rows that have no recipe of ours, and why."""
    return {key[1]: PUBLISHED_ONLY[key[1]] for key, _ in others if key[1] in PUBLISHED_ONLY}


def _has(line: Line, column: str) -> bool:
    return column in line.ours or column in line.published


def as_markdown(table: Table, blocks: Sequence[Block]) -> str:
    """The tables in Markdown.

    Args:
        table: The table, which gives the heading.
        blocks: The blocks that `table_blocks` gives.
    """
    parts = [f"### {table.name}", "", f"{table.title}."]
    for block in blocks:
        parts += ["", f"**{block.title[0].upper()}{block.title[1:]}**", ""]
        ours, published = _apart(block)
        parts += _grid(ours)
        if published is not None:
            parts += [
                "",
                "The paper's numbers come from its own images, network and training length: "
                "compare the order within one network, not the values.",
                "",
                *_grid(published),
            ]
        reasons: dict[str, list[str]] = {}
        for method, reason in block.without.items():
            reasons.setdefault(reason, []).append(method)
        if reasons:
            told = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
            parts += ["", f"Published only: {told}."]
    if not blocks:
        parts += ["", "The paper prints no numbers for this table, and we have none yet."]
    return "\n".join(parts) + "\n"


def _apart(block: Block) -> tuple[Block, Block | None]:
    """The block, and what is published of it where that is of other images: no row holds both."""
    if block.same_images or not any(line.ours and line.published for line in block.lines):
        return block, None
    # A run that broke off has a rate and no scores; what is only published has neither.
    tried = [line for line in block.lines if line.ours or line.rate or not line.published]
    ours = [dataclasses.replace(line, published={}, network="") for line in tried]
    published = [dataclasses.replace(line, ours={}) for line in block.lines if line.published]
    once = {(line.label, line.network): line for line in published}  # of each row, changed or not
    return (
        dataclasses.replace(block, lines=tuple(ours)),
        dataclasses.replace(block, lines=tuple(once.values())),
    )


def _grid(block: Block) -> list[str]:
    ours = any(line.ours for line in block.lines)
    printed = [c for c in block.columns if any(c in line.published for line in block.lines)]
    heads = ["row", *(["seeds", "rate", *block.columns] if ours else [])]
    networks = {line.network for line in block.lines if line.network}
    several = not block.same_images and len(networks) > 1
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
