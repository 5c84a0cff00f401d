"""Models on the Hugging Face hub: the saved folder, unchanged, beside a card with its scores."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbml.errors import BadData, MissingExtra
from cbml.models import Embedder
from cbml.report import score_table
from cbml.runs.folder import open_model, run_calibration
from cbml.training import read_metrics, read_record

_CARD = """---
library_name: cbml
pipeline_tag: image-feature-extraction
tags: [metric-learning, image-retrieval]
---
# {title}
Turns images into unit vectors of {dim} numbers; images that belong together lie close.

    import cbml
    model = cbml.from_hub("{repository}")
    vectors = cbml.embed(model, ["a.jpg", "b.jpg"], load=cbml.data.read_image)
    similarity = vectors[0] @ vectors[1]

{results}| setting | value |
|---|---|
{rows}
"""


def push_to_hub(model: Embedder | Path | str, repository: str, *, private: bool = False) -> str:
    """Publish a model and give its address. Log in first with `hf auth login`.

    Args:
        model: The model to publish, or the folder of a run, whose scores then stand on the card.
        repository: Name as "owner/name"; made if missing.
        private: Whether a new repository is private.
    """
    hub = _import_hub()
    results = "" if isinstance(model, Embedder) else _results(Path(model))
    opened = model if isinstance(model, Embedder) else open_model(model)
    with tempfile.TemporaryDirectory() as scratch:
        opened.save(scratch)
        card = _card(opened, repository, results)
        Path(scratch, "README.md").write_text(card, encoding="utf-8")
        try:
            hub.create_repo(repository, private=private, exist_ok=True)
            done = hub.upload_folder(
                repo_id=repository,
                folder_path=scratch,
                commit_message="Model saved by cbml",
                ignore_patterns=[".lock"],
                delete_patterns=["model-*.safetensors", "model-*.json"],
            )
        except _failures(hub) as error:
            raise _one_line(repository, "cannot be written", error) from None
    return str(done.commit_url or done)


def from_hub(repository: str, *, revision: str | None = None) -> Embedder:
    """The model published under a name; it is checked like any saved folder before it is used.

    Args:
        repository: Name as "owner/name".
        revision: A branch, tag or commit; name a commit to get the same model for ever.
    """
    hub = _import_hub()
    try:
        folder = hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=["manifest.json", "model-*.safetensors", "model-*.json"],
        )
    except _failures(hub) as error:
        raise _one_line(repository, "cannot be fetched", error) from None
    return Embedder.load(folder)


def _card(model: Embedder, repository: str, results: str) -> str:
    properties = {**model.describe(), **model.preprocessing.as_dict()}
    del properties["preprocessing"]
    rows = [f"| {key} | {value} |" for key, value in properties.items() if value not in (None, [])]
    return _CARD.format(
        title=repository.rpartition("/")[2],
        dim=model.dim,
        repository=repository,
        results=results,
        rows="\n".join(rows),
    )


def _results(run: Path) -> str:
    """What a run was trained on and what it scored, as Markdown; "" of what is no run."""
    if not (run / "run.json").is_file():
        return ""
    record = read_record(run)
    data = record.get("data", {})
    # Of the user's own images only the last part of the path is told.
    own = data.get("dataset") in (None, "folder", "table")
    name = Path(str(data.get("root", ""))).name if own else data["dataset"]
    trained = data.get("counts", {}).get("train", {})
    classes = f" of {trained['classes']:,} classes" if trained.get("classes") else ""
    images = f", {trained['images']:,} images{classes}" if trained else ""
    lines = [f"Trained on {name}{images}.", ""]
    if (table := score_table(record, read_metrics(run))) is not None:
        lines += [_row(table.heads), _row(["---"] * len(table.heads)), *map(_row, table.rows)]
        lines += ["", table.note, ""]
    return "\n".join([*lines, *_probabilities(run, record)]) + "\n"


def _probabilities(run: Path, record: dict[str, Any]) -> list[str]:
    """What the match probabilities of a run were tested on, in one sentence, where it has any."""
    probability = run_calibration(run)
    if probability is None:
        return []
    what = "images" if record.get("data", {}).get("shared_classes") else "classes"
    tested = record.get("test_reliability")
    also = "" if tested is None else f", and {tested['ece']:.3f} on the test"
    return [
        f"The run's match probabilities had a calibration error (ECE) of "
        f"{probability.check.ece:.3f} on halves of the held-out {what}, each fitted to the "
        f"other{also}.",
        "",
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub") from None
    return huggingface_hub


def _failures(hub: Any) -> tuple[type[Exception], ...]:
    # ValueError is the hub's word for a malformed repository name. Without a network its client
    # lets errors of its HTTP library pass, whose base is one of its own error's.
    http = hub.errors.HfHubHTTPError
    return (OSError, ValueError, http, *http.__bases__, hub.errors.LocalTokenNotFoundError)


def _one_line(repository: str, what: str, error: Exception) -> Exception:
    reason = " ".join(str(error).split())[:160]
    message = f"{repository}: {what} on the hub ({reason}); check name, network and `hf auth login`"
    return BadData(message) if isinstance(error, ValueError) else ConnectionError(message)
