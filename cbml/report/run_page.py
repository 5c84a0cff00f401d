"""report.html of a run: scores, curves, similarities, queries, settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from cbml.progress import counted
from cbml.report.charts import line_chart, reliability_chart
from cbml.report.pages import QueryTiles, Table, write_page

_NAMES = {
    "map@r": "MAP@R",
    "r_precision": "R-precision",
    "mrr": "MRR",
    "nmi": "NMI",
    "ami": "AMI",
}
_CURVES = {
    "loss": "L, the loss",
    "positive": "L_P, positive pairs",
    "negative": "L_N, negative pairs",
    "variance": "L_2, variance of the negatives",
}
_SETTINGS = (
    *("learning_rates", "rates", "config", "recipe", "settings", "model", "loss"),
    *("execution", "data", "environment"),
)
_SHOWN_ALARMS = 20
# What may lie beside the page, for links.
_FILES = {
    "analysis/analysis.html": "analysis of the similarities",
    "run.json": "settings and scores",
    "metrics.jsonl": "every step",
    "calibration.json": "match probabilities",
    "model/manifest.json": "the model",
}


def write_run_page(
    path: Path,
    record: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    *,
    histograms: Sequence[Markup] = (),
    gained: tuple[str, Sequence[tuple[QueryTiles, QueryTiles]]] | None = None,
    queries: Sequence[tuple[str, Sequence[QueryTiles]]] = (),
    classes: Table | None = None,
    calibration: Mapping[str, Any] | None = None,
    calibration_note: str = "",
    next_commands: Sequence[str] = (),
) -> None:
    """Write report.html of a run.

    Args:
        path: The file to create or replace.
        record: run.json.
        metrics: The lines of metrics.jsonl.
        histograms: Charts of the similarities of pairs.
        gained: A title, and queries with their neighbors before and after the training.
        queries: Titles, each with queries and their neighbors.
        classes: Scores of each class.
        calibration: "check" of calibration.json.
        calibration_note: A sentence below the charts of probabilities.
        next_commands: Command lines to copy.
    """
    write_page(
        path,
        "run.html",
        title=path.parent.name,
        subtitle=_subtitle(record),
        alarms=[*_no_gain(record), *_alarms(metrics)],
        scores=score_table(record, metrics),
        curves=_curves(metrics, _held_out(record)),
        histograms=histograms,
        reliability=_reliability(calibration, record.get("test_reliability"), _held_out(record)),
        calibration_note=calibration_note,
        gained=gained,
        queries=queries,
        classes=classes,
        next_commands=next_commands,
        files=[(name, text) for name, text in _FILES.items() if (path.parent / name).exists()],
        settings=_settings(record),
    )


def _subtitle(record: Mapping[str, Any]) -> str:
    config, environment = record.get("config", {}), record.get("environment", {})
    data, model = config.get("data", {}), config.get("model", {})
    loss, method = config.get("loss", {}), config.get("method", {})
    learned = f"method {method['name']}" if method.get("name") else f"loss {loss.get('name')}"
    words = [
        f"{data.get('source')}, {model.get('backbone')}, {learned}",
        counted(record.get("steps_done", 0), "step"),
    ]
    if environment.get("commit"):  # an installed package knows none
        words.append(f"commit {environment['commit']}")
    return " · ".join(words)


def _known_classes(record: Mapping[str, Any]) -> bool:
    """Whether the images to search among are of classes that were trained on."""
    return bool(record.get("data", {}).get("shared_classes"))


def _held_out(record: Mapping[str, Any]) -> str:
    """What was kept from the training, to choose the model by."""
    labeled = record.get("config", {}).get("data", {}).get("labels", "known") == "known"
    return "classes" if labeled and not _known_classes(record) else "images"


def _is_held_out(record: Mapping[str, Any]) -> bool:
    """Whether what chose the model was kept from the training; views of images need not be."""
    training = record.get("config", {}).get("training", {})
    return bool(training.get("choose_by") != "view_agreement")


def score_table(record: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Table | None:
    """Held-out and test scores of a run beside those of its start; None where it has none.

    Args:
        record: What run.json holds.
        metrics: The lines of metrics.jsonl.
    """
    validations = {line["step"]: line["validation"] for line in metrics if "validation" in line}
    judges = "held-out" if _is_held_out(record) else "training"
    columns = {
        f"{judges}, before": validations.get(0, {}),
        f"{judges}, after": validations.get(record.get("best_step"), {}),
        "test, before": record.get("test_start", {}),
        "test, after": record.get("test", {}),
    }
    columns = {head: part for head, part in columns.items() if part}
    if not columns:
        return None
    counts = record.get("data", {}).get("counts", {})
    parts = {"validation"} if any(head.startswith("held-out") for head in columns) else set()
    if any(head.startswith("test") for head in columns):
        parts |= counts.keys() - {"train", "validation"}
    searched = max((counts[name]["images"] for name in parts & counts.keys()), default=0)
    found = {name for part in columns.values() for name in part} - {"recall@1000"}
    found = {name for name in found if not searched or tells_something(name, searched)}
    rows = [
        (_title(name), *(_percent(part.get(name)) for part in columns.values()))
        for name in sorted(found, key=score_position)
    ]
    return Table(("", *columns), rows, note=_note(record))


def _note(record: Mapping[str, Any]) -> str:
    words = ["In percent."]
    known = _known_classes(record)
    if known:
        words.append("Scores are for new images of known classes.")
    if record.get("best_step") is not None:
        judges = "Other views of the training images"
        if _is_held_out(record):
            judges = f"Held-out {_held_out(record)} are never trained on; they"
        words.append(f"{judges} chose the model of step {record['best_step']}.")
    words.append(f"Test evaluations so far: {record.get('test_evaluations', 0)}.")
    return " ".join(words)


def _title(name: str) -> str:
    return _NAMES.get(name, name.replace("recall", "Recall"))


def score_position(name: str) -> tuple[int, str]:
    """Where a score stands among others: Recall@K by K, then the rest in their usual order.

    Args:
        name: Such as "recall@1" or "map@r".
    """
    depth = name.removeprefix("recall@")
    if depth != name and depth.isdecimal():  # a name may be of a user's own metric
        return int(depth), name
    known = list(_NAMES)
    return 10**9 + (known.index(name) if name in known else len(known)), name


def tells_something(name: str, images: int) -> bool:
    """Whether a score can differ from 1; Recall@K cannot where K results are all images.

    Args:
        name: Such as "recall@100".
        images: How many are searched.
    """
    return not (name.startswith("recall@") and score_position(name)[0] >= images)


def _percent(value: object) -> str:
    return f"{100 * value:.1f}" if isinstance(value, float | int) else "–"


def _no_gain(record: Mapping[str, Any]) -> list[str]:
    if record.get("best_step") != 0 or not record.get("steps_done"):
        return []
    return ["Training did not improve on the start: the model is the network as it was before."]


def _alarms(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    texts = [
        str(line[kind]) for line in metrics for kind in ("skipped", "collapse") if kind in line
    ]
    more = len(texts) - _SHOWN_ALARMS
    return texts[:_SHOWN_ALARMS] + ([f"and {more} more in metrics.jsonl"] if more > 0 else [])


def _curves(metrics: Sequence[Mapping[str, Any]], held_out: str) -> list[Markup]:
    charts = [
        line_chart(
            title, [(line["step"], line[name]) for line in metrics if line.get(name) is not None]
        )
        for name, title in _CURVES.items()
    ]
    for name, title in {
        "recall@1": f"Recall@1 on held-out {held_out}",
        "agreement": "Agreement of held-out images with their enlarged views",
        "view_agreement": "Agreement of training images with other views of them",
    }.items():
        scores = [
            (line["step"], line["validation"][name])
            for line in metrics
            if line.get("validation", {}).get(name) is not None
        ]
        charts.append(line_chart(title, scores, dots=True))
    return [one for one in charts if one]


def _reliability(
    calibration: Mapping[str, Any] | None, tested: Mapping[str, Any] | None, held_out: str
) -> list[Markup]:
    checks = {
        f"on halves of the held-out {held_out}, each fitted to the other": calibration,
        "on the test, to which nothing was fitted": tested,
    }
    return [
        reliability_chart(
            f"Accuracy against confidence {where}; calibration error {check['ece']:.3f}, "
            f"Brier score {check['brier']:.3f}",
            check["confidence"],
            check["accuracy"],
            check["counts"],
        )
        for where, check in checks.items()
        if check is not None
    ]


def _settings(record: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    found = []
    for name in _SETTINGS:
        value = record.get(name)
        if value is None:
            continue
        rows = value.items() if isinstance(value, Mapping) else [("", value)]
        found.append((name.replace("_", " "), [(str(key), str(entry)) for key, entry in rows]))
    return found
