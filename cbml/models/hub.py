"""Models on the Hugging Face hub: the saved folder, unchanged, beside a short card."""

import tempfile
from pathlib import Path
from typing import Any

from cbml.errors import BadData, MissingExtra
from cbml.models.embedder import Embedder

_CARD = """---
library_name: cbml
tags: [metric-learning, image-retrieval]
---
# {title}
Turns images into unit vectors of {dim} numbers; images that belong together lie close.

    import cbml
    model = cbml.from_hub("{repository}")

| setting | value |
|---|---|
{rows}
"""


def push_to_hub(model: Embedder, repository: str, *, private: bool = False) -> str:
    """Publish a model and give its address. Log in first with `hf auth login`.

    Args:
        model: the model.
        repository: "owner/name"; made if missing.
        private: whether a new repository is private.
    """
    hub = _import_hub()
    with tempfile.TemporaryDirectory() as scratch:
        model.save(scratch)
        Path(scratch, "README.md").write_text(_card(model, repository), encoding="utf-8")
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
        repository: "owner/name".
        revision: a branch, tag or commit; name a commit to get the same model for ever.
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


def _card(model: Embedder, repository: str) -> str:
    facts = {key: value for key, value in model.describe().items() if key != "preprocessing"}
    rows = [f"| {key} | {value} |" for key, value in facts.items()]
    rows += [f"| {key} | {value} |" for key, value in model.preprocessing.as_dict().items()]
    return _CARD.format(
        title=repository.rpartition("/")[2],
        dim=model.dim,
        repository=repository,
        rows="\n".join(rows),
    )


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub") from None
    return huggingface_hub


def _failures(hub: Any) -> tuple[type[Exception], ...]:
    # ValueError is the hub's word for a malformed repository name.
    return (OSError, ValueError, hub.errors.HfHubHTTPError, hub.errors.LocalTokenNotFoundError)


def _one_line(repository: str, what: str, error: Exception) -> Exception:
    reason = " ".join(str(error).split())[:160]
    message = f"{repository}: {what} on the hub ({reason}); check name, network and `hf auth login`"
    return BadData(message) if isinstance(error, ValueError) else ConnectionError(message)
