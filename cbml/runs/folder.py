"""What a run folder holds: its config, its model and its calibration."""

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cbml.bayes import MatchProbability
from cbml.errors import BadData
from cbml.files import check_name, locked
from cbml.models import BACKBONES, Embedder
from cbml.program import command
from cbml.runs.config import RunConfig
from cbml.training import Distributed, read_record


def recorded_config(folder: Path, *, allow_code: bool = True) -> RunConfig:
    """The config of the run in a folder.

    Args:
        folder: The run's folder.
        allow_code: As for `RunConfig.from_dict`: False where the config will be trained with.
    """
    return RunConfig.from_dict(read_record(folder).get("config", {}), allow_code=allow_code)


def images_to_index(config: RunConfig) -> list[str]:
    """The words after `cbml index RUN` that name a run's own images, read as the run read them.

    Args:
        config: The run's config.
    """
    data = config.data
    named = {"label-from": data.label_from, "path-column": data.path_column}
    named |= {"label-column": data.label_column}
    options = [word for key, text in named.items() if text for word in (f"--{key}", text)]
    return [data.source, *options, *(["--allow-partial"] if data.allow_partial else [])]


def run_reading(
    run: str | Path, source: Path | str, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Keywords of `list_images`: what is given, else as a run splits images and reads its own.

    Args:
        run: What the user gave: a run's folder, a saved model's, or a backbone's name.
        source: The images to list.
        given: Keywords that the user chose; None and False leave the choice to the run.
    """
    reading: dict[str, Any] = {}
    if os.path.lexists(Path(run) / "run.json"):
        config = recorded_config(Path(run))
        reading = {"seed": config.training.seed, "split_by": config.data.split}
        if os.path.abspath(source) == os.path.abspath(config.data.source):
            own = ("label_from", "path_column", "label_column", "allow_partial")
            reading |= {name: getattr(config.data, name) for name in own}
    return reading | {name: value for name, value in (given or {}).items() if value}


@contextlib.contextmanager
def hold_run(folder: Path, distributed: Distributed | None = None) -> Iterator[None]:
    """Be the only writer of a run's folder inside the block; raises FolderInUse where one is.

    Args:
        folder: The run's folder; made if missing.
        distributed: The processes that train together; the main one holds the folder for all.
    """
    with contextlib.ExitStack() as stack:

        def take() -> Tensor:
            check_name(folder)
            stack.enter_context(locked(folder, wait=0))
            return torch.zeros(1)

        (distributed or Distributed()).from_main_process(take, torch.zeros(1))
        yield


def open_model(run: str | Path) -> Embedder:
    """The model of a run folder, of a saved model's folder, or of a backbone's name.

    Args:
        run: What the user gave.
    """
    folder, name = Path(run), str(run)
    if not folder.exists() and (name in BACKBONES or name.startswith("timm:")):
        return Embedder(name).eval()
    return Embedder.load(model_folder(folder))


def model_folder(run: Path) -> Path:
    """Where the model of a run folder lies, or a saved model's folder itself."""
    if not run.is_dir():
        known = [*BACKBONES, *(str(folder) for folder in run.parent.glob("*/"))]
        near = difflib.get_close_matches(str(run), known, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadData(f"{run}: no such run or saved model{hint}")
    inner = run / "model"
    if (run / "run.json").exists() and not (inner / "manifest.json").exists():
        resume = command("train", "--resume", run)
        raise BadData(f"{run}: has no trained model yet; resume with:  {resume}")
    if not inner.is_dir() and any(run.glob("arrays-*")):
        raise BadData(f"{run}: a gallery, not a run; give the run that it was made with")
    if not inner.is_dir() and not (run / "manifest.json").exists():
        train = command("train", run)
        raise BadData(f"{run}: neither a run nor a saved model; to train on its images:  {train}")
    return inner if inner.is_dir() else run


def run_calibration(run: str | Path) -> MatchProbability | None:
    """The match probabilities of a run; None where it has none, or `run` is not a run.

    Args:
        run: A run's folder.
    """
    path = Path(run) / "calibration.json"
    # Whatever else lies there is an error, not a run without probabilities.
    return MatchProbability.load(path) if os.path.lexists(path) else None
