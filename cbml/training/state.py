"""All that changes while a model is trained, so that it can be saved and put back to the bit."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cbml.data import Batches
from cbml.errors import BadData
from cbml.models import Embedder
from cbml.training.checkpoints import (
    Checkpoint,
    random_states,
    restore_random_states,
    write_checkpoint,
)
from cbml.training.optimisers import optimiser_tensors, restore_optimiser
from cbml.training.settings import Settings

__all__ = ["TrainingState"]

# What may differ between a run and its continuation: how long, and what is written how often.
_MAY_CHANGE = ("steps", "epochs", "patience", "validate_every", "checkpoint_every")
_MAY_CHANGE_TOO = ("keep_checkpoints", "collapse", "bad_numbers", "skips_allowed")


class TrainingState:
    """The model in training, and where training stands.

    Args:
        model: what is trained.
        loss: with parameters or buffers of its own, or without.
        optimiser: over both.
        batches: their sampler knows which batch comes next.
        settings: saved with the rest, to see whether a continuation is one.
    """

    def __init__(
        self,
        model: Embedder,
        loss: nn.Module,
        optimiser: torch.optim.Optimizer,
        batches: Batches,
        settings: Settings,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimiser = optimiser
        self.batches = batches
        self.settings = settings
        self.step = 0
        self.best_score: float | None = None
        self.best_step: int | None = None
        self.validations_without_gain = 0
        self.skipped_in_a_row = 0

    def improves(self, score: float) -> bool:
        """Whether a validation score is the best so far; NaN and infinity never are.

        Args:
            score: larger is better.
        """
        better = math.isfinite(score) and (self.best_score is None or score > self.best_score)
        if better:
            self.best_score, self.best_step = score, self.step
        self.validations_without_gain = 0 if better else self.validations_without_gain + 1
        return better

    def tensors(self) -> dict[str, Tensor]:
        """All that training changes: "model.<name>", "loss.<name>" and "optimiser.<name>"."""
        parts = {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimiser": optimiser_tensors(self.optimiser),
        }
        return {
            f"{part}.{name}": value
            for part, values in parts.items()
            for name, value in values.items()
        }

    def save(self, folder: Path, environment: Mapping[str, Any]) -> None:
        """Write a checkpoint.

        Args:
            folder: that holds all checkpoints of the run.
            environment: versions and hardware, to compare with when it is read.
        """
        generators, generator_facts = random_states()
        parts = {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimiser": optimiser_tensors(self.optimiser),
            "random": generators,
        }
        labels = self.batches.images.labels
        if self.batches.relabelled and labels is not None:
            parts["labels"] = {"pictures": torch.tensor(labels)}
        tensors: dict[str, Tensor] = {
            f"{part}.{name}": value
            for part, values in parts.items()
            for name, value in values.items()
        }
        state = {
            "settings": self.settings.as_dict(),
            "environment": dict(environment),
            "sampler": self.batches.sampler.state_dict(),  # type: ignore[attr-defined]
            "pictures": _names(self.batches),
            "random": generator_facts,
            "bad": {str(index): reason for index, reason in self.batches.bad.reasons.items()},
            "best_score": self.best_score,
            "best_step": self.best_step,
            "validations_without_gain": self.validations_without_gain,
            "skipped_in_a_row": self.skipped_in_a_row,
        }
        write_checkpoint(folder, self.step, tensors, state, self.settings.keep_checkpoints)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint stands; refused where it would not be the same run.

        Args:
            checkpoint: as read back.
        """
        saved = checkpoint.state
        _same_settings(saved["settings"], self.settings.as_dict())
        labels = checkpoint.part("labels")
        if labels:
            self.batches.relabel(labels["pictures"].numpy())
        self.batches.sampler.load_state_dict(saved["sampler"])  # type: ignore[attr-defined]
        if saved.get("pictures", _names(self.batches)) != _names(self.batches):
            raise BadData("the pictures have other names than those of the run: start anew")
        for part, module in (("model", self.model), ("loss", self.loss)):
            try:
                module.load_state_dict(checkpoint.part(part))
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:200]
                raise BadData(f"the checkpoint is of another {part}: {reason}") from None
        restore_optimiser(self.optimiser, checkpoint.part("optimiser"))
        restore_random_states(checkpoint.part("random"), saved["random"])
        self.batches.bad.reasons.update({int(key): why for key, why in saved["bad"].items()})
        self.step = checkpoint.step
        self.best_score, self.best_step = saved["best_score"], saved["best_step"]
        self.validations_without_gain = saved["validations_without_gain"]
        self.skipped_in_a_row = saved["skipped_in_a_row"]


def _names(batches: Batches) -> str:
    """What changes when a picture comes, goes or is renamed, but not when all are moved."""
    names = "\0".join(path.name for path in batches.images.paths)
    return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:16]


def _same_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in sorted(before.keys() | now.keys()):
        if name not in _MAY_CHANGE + _MAY_CHANGE_TOO and before.get(name) != now.get(name):
            raise BadData(
                f"{name} was {before.get(name)!r} and is now {now.get(name)!r}: not the same run; "
                "resume with the former value or start anew"
            )
