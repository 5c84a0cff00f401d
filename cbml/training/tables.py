"""The parts of report.html that are tables and lists: scores, alarms, settings."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["alarm_list", "score_table", "setting_tables"]

_NAMES = {"map_at_r": "MAP@R", "r_precision": "R-precision", "nmi": "NMI", "ami": "AMI"}
_SETTINGS = ("rates", "recipe", "settings", "model", "loss", "execution", "data", "environment")
_SHOWN_ALARMS = 20


def score_table(record: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Scores before and after on held-out classes, and on the test classes if looked at.

    Args:
        record: run.json.
        metrics: the lines of metrics.jsonl.
    """
    validations = {line["step"]: line["validation"] for line in metrics if "validation" in line}
    columns = {
        "held-out, before": validations.get(0, {}),
        "held-out, after": validations.get(record.get("best_step"), {}),
        "test, after": record.get("test", {}),
    }
    columns = {head: part for head, part in columns.items() if part}
    if not columns:
        return ""
    found = {name for part in columns.values() for name in part} - {"recall@1000"}
    rows = "".join(
        f"<tr><th>{escape(_title(name))}</th>"
        + "".join(f"<td>{_percent(part.get(name))}</td>" for part in columns.values())
        + "</tr>"
        for name in sorted(found, key=_place)
    )
    heads = "".join(f"<th>{head}</th>" for head in ("", *columns))
    return f"<table><tr>{heads}</tr>{rows}</table><p>{escape(_note(record))}</p>"


def _note(record: Mapping[str, Any]) -> str:
    chosen = record.get("best_step")
    words = ["In percent."]
    if chosen is not None:
        words.append(
            f"Held-out classes are never trained on; they chose the model of step {chosen}."
        )
    words.append(f"Looks at the test classes so far: {record.get('test_looks', 0)}.")
    return " ".join(words)


def _title(name: str) -> str:
    return _NAMES.get(name, name.replace("recall", "Recall"))


def _place(name: str) -> tuple[int, str]:
    """Recall@K by K, then the others in their usual order."""
    if name.startswith("recall@"):
        return int(name.removeprefix("recall@")), name
    known = list(_NAMES)
    return 10**9 + (known.index(name) if name in known else len(known)), name


def _percent(value: object) -> str:
    return f"{100 * value:.1f}" if isinstance(value, float | int) else "–"


def alarm_list(metrics: Sequence[Mapping[str, Any]]) -> str:
    """What was said of collapse and of skipped updates; empty where nothing was.

    Args:
        metrics: the lines of metrics.jsonl.
    """
    texts = [
        str(line[kind]) for line in metrics for kind in ("skipped", "collapse") if kind in line
    ]
    items = "".join(f"<li>{escape(text)}</li>" for text in texts[:_SHOWN_ALARMS])
    more = len(texts) - _SHOWN_ALARMS
    items += f"<li>and {more} more in metrics.jsonl</li>" if more > 0 else ""
    return f"<ul>{items}</ul>" if items else ""


def setting_tables(record: Mapping[str, Any]) -> str:
    """Everything that was chosen or found, folded away.

    Args:
        record: run.json.
    """
    parts = []
    for name in _SETTINGS:
        if name not in record:
            continue
        value = record[name]
        rows = value.items() if isinstance(value, Mapping) else [("", value)]
        cells = "".join(
            f"<tr><th>{escape(str(key))}</th><td>{escape(str(entry))}</td></tr>"
            for key, entry in rows
            if key != "settings"
        )
        parts.append(f"<details><summary>{name}</summary><table>{cells}</table></details>")
    return "".join(parts)
