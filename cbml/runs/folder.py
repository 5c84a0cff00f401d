"""What a run folder holds: its config and its model."""

from pathlib import Path

from cbml.errors import BadData
from cbml.models import BACKBONES, Embedder
from cbml.runs.config import RunConfig
from cbml.training import read_record


def recorded_config(folder: Path, *, allow_code: bool = True) -> RunConfig:
    """The config of the run in a folder.

    Args:
        folder: The run's folder.
        allow_code: As for `RunConfig.from_dict`: False where the config will be trained with.
    """
    return RunConfig.from_dict(read_record(folder).get("config", {}), allow_code=allow_code)


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
    """Where the model of a run folder lies, or a saved model's folder itself.

    Args:
        run: What the user gave.
    """
    if not run.is_dir():
        raise BadData(f"{run}: no such folder of a run or of a saved model")
    inner = run / "model"
    if (run / "run.json").exists() and not (inner / "manifest.json").exists():
        raise BadData(f"{run}: has no trained model yet; resume with:  cbml train --resume {run}")
    return inner if inner.is_dir() else run
