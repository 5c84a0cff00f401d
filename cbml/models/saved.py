"""Saved models: tensors as safetensors, settings as JSON, both under a manifest of SHA-256 sums."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from cbml.errors import BadData, DamagedFile
from cbml.files import consistent, load_folder, save_folder, write_json

KIND = "cbml model 2"
_SETTINGS: dict[str, type] = {
    "backbone": str,
    "dim": int,
    "pooling": str,
    "batch_norm": str,
    "preprocessing": dict,
    "provenance": str,
    "heads": list,
}


def write_model(
    folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, object]
) -> None:
    """Save tensors and settings as one model folder, in one step.

    Args:
        folder: made if missing; a model in it is replaced.
        tensors: name -> tensor, every number finite.
        settings: the settings to build the same network again.
    """
    # safetensors wants plain row-major memory; a channels-last model is saved all the same.
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in plain.items():
        if not bool(torch.isfinite(tensor).all()):
            raise BadData(f"{folder}: not saved, {name} holds NaN or infinity")
    parts = {
        "model.safetensors": lambda path: safetensors.torch.save_file(plain, path),
        "model.json": lambda path: write_json(path, dict(settings)),
    }
    save_folder(folder, KIND, parts, {"backbone": settings["backbone"]})


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The checked tensors and settings of a model folder, also while a run is writing there."""
    return consistent(folder, lambda: _read(folder))


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    parts, _ = load_folder(folder, KIND)
    if set(parts) != {"model.safetensors", "model.json"}:
        raise DamagedFile(f"{folder}: a saved model has model.safetensors and model.json")
    try:
        settings = json.loads(parts["model.json"].read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedFile(f"{parts['model.json']}: not readable as JSON ({error})") from None
    if not _is_settings(settings):
        raise DamagedFile(f"{parts['model.json']}: not the settings of a saved model")
    try:
        tensors = safetensors.torch.load_file(parts["model.safetensors"])
    except Exception as error:  # the hash is right, so somebody meant it: still no traceback
        reason = " ".join(str(error).split())[:160]
        raise DamagedFile(f"{parts['model.safetensors']}: {reason}") from None
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DamagedFile(f"{parts['model.safetensors']}: {name} holds NaN or infinity")
    return tensors, settings


def _is_settings(settings: object) -> bool:
    if not isinstance(settings, dict) or not isinstance(settings.get("reranker", 0), str | None):
        return False
    if not isinstance(settings.get("head"), dict | None):
        return False
    plain = {key: value for key, value in settings.items() if key not in ("reranker", "head")}
    return {key: type(value) for key, value in plain.items()} == _SETTINGS
