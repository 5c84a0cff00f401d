"""Checkpoints: all that a run needs to resume to the bit, as safetensors and JSON, never pickle.

Each is a folder of its own below `checkpoints/`, complete when its manifest is there. The newest
that is whole is used; a damaged one is reported and the one before it is taken.
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from cbml.errors import DamagedFile
from cbml.files import load_folder, save_folder, write_json
from cbml.regular import read_text
from cbml.training.guards import NonFiniteError

KIND = "cbml checkpoint 2"
_DIGITS = 9


@dataclass(frozen=True)
class Checkpoint:
    """What was read back: tensors by names such as "model.head.weight", and plain values."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `name.`, without it."""
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): value
            for key, value in self.tensors.items()
            if key.startswith(prefix)
        }


def write_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, object], keep: int
) -> None:
    """Write one checkpoint, then delete all but it and the `keep - 1` whole ones before it.

    Checkpoints of later steps are of a run that was lost or passed over as damaged, and those
    without a manifest were never finished: neither is worth keeping in place of a whole one.
    """
    plain = {name: _plain(value) for name, value in tensors.items()}
    for name, value in plain.items():
        if not bool(torch.isfinite(value).all()):
            raise NonFiniteError(
                f"step {step}: {name} holds NaN or infinity; no checkpoint was written, the one "
                f"before it in {folder} is good"
            )
    parts = {
        "tensors.safetensors": lambda path: safetensors.torch.save_file(plain, path),
        "state.json": lambda path: write_json(path, dict(state)),
    }
    save_folder(folder / _name(step), KIND, parts, {"step": step})
    whole = [path for path in _folders(folder) if (path / "manifest.json").exists()]
    kept = [path for path in whole if path.name <= _name(step)][:keep]
    for old in _folders(folder):
        if old in kept:
            continue
        (old / "manifest.json").unlink(missing_ok=True)  # first: half a checkpoint is none
        shutil.rmtree(old, ignore_errors=True)


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none. Damaged ones are said."""
    damaged: DamagedFile | None = None
    for candidate in _folders(folder):
        if not (candidate / "manifest.json").exists():
            continue  # killed while it was written
        try:
            return _read(candidate)
        except DamagedFile as error:
            say(f"damaged checkpoint passed over: {error}")
            damaged = error
    if damaged is not None:
        raise damaged
    return None


def random_states() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of every global generator, as tensors and as plain values."""
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states = torch.cuda.get_rng_state_all()
        tensors |= {f"cuda{number}": state for number, state in enumerate(states)}
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    tensors["numpy"] = torch.from_numpy(np.asarray(keys, dtype=np.int64))
    version, words, following = random.getstate()
    tensors["python"] = torch.tensor(words, dtype=torch.int64)
    values = {
        "numpy": [str(name), int(position), int(has_gauss), float(gauss)],
        "python": [version, following],
    }
    return tensors, values


def restore_random_states(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Put every global generator back to what `random_states` gave."""
    torch.set_rng_state(tensors["torch"])
    cuda = [name for name in sorted(tensors) if name.startswith("cuda")]
    if torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([tensors[name] for name in cuda])
    name, position, has_gauss, gauss = values["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((name, keys, position, has_gauss, gauss))
    version, following = values["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), following))


def _plain(value: Tensor) -> Tensor:
    # A copy of its own: safetensors refuses tensors that share memory, such as tied weights.
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _name(step: int) -> str:
    return f"step-{step:0{_DIGITS}}"


def _folders(folder: Path) -> list[Path]:
    """Folders of checkpoints, whole or not, the newest first."""
    return sorted((path for path in folder.glob("step-*") if path.is_dir()), reverse=True)


def _read(folder: Path) -> Checkpoint:
    parts, metadata = load_folder(folder, KIND)
    if set(parts) != {"tensors.safetensors", "state.json"}:
        raise DamagedFile(f"{folder}: not the parts of a checkpoint")
    try:
        state = json.loads(read_text(parts["state.json"]))
        tensors = safetensors.torch.load_file(parts["tensors.safetensors"])
        checkpoint = Checkpoint(int(metadata["step"]), tensors, dict(state))
    except Exception as error:  # the sums are right, so somebody meant it: still no traceback
        raise DamagedFile(f"{folder}: {' '.join(str(error).split())[:160]}") from None
    return checkpoint
