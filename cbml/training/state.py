"""All that changes while a model is trained, so that it can be saved and put back to the bit."""

import contextlib
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cbml.data import Batches, EpochBatches
from cbml.errors import BadData
from cbml.models import Embedder
from cbml.training.checkpoints import (
    Checkpoint,
    random_states,
    restore_random_states,
    write_checkpoint,
)
from cbml.training.guards import CollapseWatch
from cbml.training.method import EpochPlan, Method
from cbml.training.optimizers import optimizer_tensors, restore_optimizer
from cbml.training.settings import MAY_CHANGE, Settings


class TrainingState:
    """The model and the method in training, and where training stands.

    `config` is every choice of the run beyond `settings`, as plain values: a continuation is
    refused where it differs in anything but the names in `free`.
    """

    def __init__(
        self,
        model: Embedder,
        method: Method,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        settings: Settings,
        *,
        config: Mapping[str, Any],
        free: Iterable[str] = (),
    ) -> None:
        self.model = model
        self.method = method
        self.optimizer = optimizer
        self.batches = batches
        self.settings = settings
        self.config = dict(config)
        self.free = frozenset(free)
        self.step = 0
        self.rest: frozenset[str] = frozenset()
        self.best_score: float | None = None
        self._best_saved: int | None = None
        self.best_tie: float | None = None
        self.best_step: int | None = None
        self.best_weights: dict[str, Tensor] | None = None
        # Of a method that has a part in the scores.
        self.best_method: dict[str, Tensor] | None = None
        # The moving average of the weights, where one is asked for.
        self.average: dict[str, Tensor] | None = None
        self.validations_without_gain = 0
        self.skipped_in_a_row = 0
        self.watch = CollapseWatch()
        self._digest: str | None = None

    def begin_epoch(self, plan: EpochPlan | None) -> None:
        """Draw the coming epoch as its plan says."""
        plan = EpochPlan() if plan is None else plan
        if plan.labels is not None:
            self.batches.relabel(plan.labels)
        self.batches.follow(plan.batches)
        self.rest = plan.rest

    def begin_average(self) -> None:
        """Let the average, where one is asked for, begin with the weights as they are."""
        if self.settings.ema:
            self.average = _copied(self.model.state_dict())

    def update_average(self, steps: int) -> None:
        """Move the average towards the weights of this step, of `steps` in all.

        In its first steps the window is shorter: the start does not count for more than the rest.
        """
        if self.average is None:
            return
        window = max(1.0, self.settings.ema * steps)
        share = max(1.0 / window, 9.0 / (9.0 + self.step))
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, share)
            else:
                self.average[name].copy_(value)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with its averaged weights, inside the block; as it is where there are none."""
        if self.average is None:
            yield
            return
        own = _copied(self.model.state_dict())
        self.model.load_state_dict(self.average)
        try:
            yield
        finally:
            self.model.load_state_dict(own)

    def improves(self, score: float, tie: float | None = None) -> bool:
        """Whether a validation is to be kept as the best so far; NaN and infinity never are.

        Among equal scores the larger `tie` is kept, and among equal ties the later step; but a
        model that is merely as good is no gain that patience would wait for.
        """
        now = (score, _finite(tie))
        before = (-math.inf if self.best_score is None else self.best_score, _finite(self.best_tie))
        better = math.isfinite(score) and now >= before
        if better:
            self.best_score, self.best_step = score, self.step
            # JSON holds no NaN: kept as it is, it would be the end of the next checkpoint.
            self.best_tie = tie if tie is not None and math.isfinite(tie) else None
            self.best_weights = _copied(self.model.state_dict())
            if self.method.refines:
                self.best_method = _copied(self.method.state_dict())
        gained = better and now > before
        self.validations_without_gain = 0 if gained else self.validations_without_gain + 1
        return better

    def restore_best(self) -> None:
        """Load the weights of the best step, those of a method that refines too."""
        weights = self.average if self.best_weights is None else self.best_weights
        if weights is not None:
            self.model.load_state_dict(weights)
        if self.best_method is not None:
            self.method.load_state_dict(self.best_method)

    def keep_finished(self) -> None:
        """Take the model as it is for the best: its method has finished it, after the last step.

        Checkpoints hold it as it was before, so that more steps can follow.
        """
        if self.best_step is not None:
            self.best_weights, self._best_saved = _copied(self.model.state_dict()), None

    def save_best(self, folder: Path) -> None:
        """Write the model of the best step, if there is one and it is not written yet."""
        if self.best_step is not None and self._best_saved != self.best_step:
            self.model.save(folder, weights=self.best_weights)
            self._best_saved = self.best_step

    def describe(self) -> dict[str, Any]:
        """What is trained, on which batches and how, as plain values."""
        sampler: Any = self.batches.sampler
        loss = self.method if self.method.loss is None else self.method.loss
        return {
            "settings": self.settings.as_dict(),
            "model": self.model.describe(),
            "method": type(self.method).__name__,
            "loss": " ".join(str(loss).split()),
            "crop": self.batches.transform.crop,
            "transform": str(self.batches.transform),
            "sampler": sampler.state_dict()["conditions"],
        }

    def tensors(self) -> dict[str, Tensor]:
        """All that training changes: "model.<name>", "method.<name>", "optimizer.<name>" ..."""
        return _named(
            {
                "model": self.model.state_dict(),
                "method": self.method.state_dict(),
                "average": self.average or {},
                "optimizer": optimizer_tensors(self.optimizer),
                "own_optimizer": _named(
                    {name: optimizer_tensors(own) for name, own in self._own_optimizers()}
                ),
            }
        )

    def save(self, folder: Path, environment: Mapping[str, Any]) -> None:
        """Write a checkpoint, with the versions and hardware to compare with when it is read."""
        generators, generator_state = random_states()
        further: dict[str, Mapping[str, Tensor]] = {"random": generators}
        averages = self.average is not None
        if self.best_weights is not None and (averages or self.best_step != self.step):
            further["best"] = self.best_weights
            further["best_method"] = self.best_method or {}
        labels = self.batches.images.labels
        if self.batches.relabeled and labels is not None:
            further["labels"] = {"images": torch.tensor(labels)}
        if self.batches.planned is not None:
            further["planned"] = _planned_tensors(self.batches.planned)
        state = {
            "settings": self.settings.as_dict(),
            "config": self.config,
            "environment": dict(environment),
            "sampler": self.batches.sampler.state_dict(),  # type: ignore[attr-defined]
            "images": _names(self.batches),
            "contents": self._contents(),
            "rest": sorted(self.rest),
            "random": generator_state,
            "bad": {str(index): reason for index, reason in self.batches.bad.reasons.items()},
            "best_score": self.best_score,
            "best_tie": self.best_tie,
            "best_step": self.best_step,
            "validations_without_gain": self.validations_without_gain,
            "skipped_in_a_row": self.skipped_in_a_row,
            "watch": self.watch.state_dict(),
        }
        tensors = self.tensors() | _named(further)
        write_checkpoint(folder, self.step, tensors, state, self.settings.keep_checkpoints)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume where a checkpoint stands; refused where it would not be the same run."""
        saved = checkpoint.state
        self._refuse_another_run(saved)
        self._restore_batches(checkpoint)
        for part, module in (("model", self.model), ("method", self.method)):
            try:
                module.load_state_dict(checkpoint.part(part))
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:200]
                raise BadData(f"the checkpoint is of another {part}: {reason}") from None
        restore_optimizer(self.optimizer, checkpoint.part("optimizer"))
        optimizers = Checkpoint(checkpoint.step, checkpoint.part("own_optimizer"), {})
        for name, optimizer in self._own_optimizers():
            restore_optimizer(optimizer, optimizers.part(name))
        restore_random_states(checkpoint.part("random"), saved["random"])
        self.step = checkpoint.step
        self.rest = frozenset(saved["rest"])
        self.best_score, self.best_step = saved["best_score"], saved["best_step"]
        self.best_tie = saved["best_tie"]
        if self.settings.ema:
            self.average = checkpoint.part("average")
        own = self.best_step == self.step and self.average is None
        best = checkpoint.part("model" if own else "best")
        self.best_weights = None if self.best_step is None else best
        if self.best_step is not None and self.method.refines:
            part = "method" if own else "best_method"
            self.best_method = checkpoint.part(part)
        self.validations_without_gain = saved["validations_without_gain"]
        self.skipped_in_a_row = saved["skipped_in_a_row"]
        if "watch" in saved:  # checkpoints of earlier versions have none
            self.watch.load_state_dict(saved["watch"])

    def _refuse_another_run(self, saved: Mapping[str, Any]) -> None:
        free = (*MAY_CHANGE, "bad_numbers")  # what `non_finite` was called in earlier checkpoints
        _same(saved["settings"], self.settings.as_dict(), free)
        before, now = _flat(saved["config"]), _flat(self.config)
        # Of the loop alone: an option of a loss or a method may have such a name as well.
        loop = {*free, *(f"training.{name}" for name in free)}
        _same(before, now, loop | self.free)

    def _restore_batches(self, checkpoint: Checkpoint) -> None:
        saved, batches = checkpoint.state, self.batches
        labels = checkpoint.part("labels")
        if labels:
            batches.relabel(labels["images"].numpy())
        batches.sampler.load_state_dict(saved["sampler"])  # type: ignore[attr-defined]
        if saved["images"] != _names(batches):
            raise BadData(
                "the images have other names than those of the run: restore them, or start "
                "from scratch in another folder"
            )
        known = None not in (saved["contents"], self._contents())
        if known and saved["contents"] != self._contents():
            raise BadData(
                "the images have other contents than those of the run, under the same names: "
                "restore them, or start from scratch in another folder"
            )
        planned = checkpoint.part("planned")
        if planned:
            batches.follow(EpochBatches(**{name: part.numpy() for name, part in planned.items()}))
        batches.bad.reasons.update({int(key): why for key, why in saved["bad"].items()})

    def _contents(self) -> str | None:
        """A digest of the images' sizes and contents; None where their source has none."""
        digest = getattr(self.batches.source, "digest", None)
        if self._digest is None and digest is not None:
            self._digest = digest()
        return self._digest

    def _own_optimizers(self) -> Iterable[tuple[str, torch.optim.Optimizer]]:
        return self.method.optimizers().items()


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else -math.inf


def _named(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{part}.{name}": value for part in parts for name, value in parts[part].items()}


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def _planned_tensors(planned: EpochBatches) -> dict[str, Tensor]:
    named = {"indices": planned.indices, "labels": planned.labels, "streams": planned.streams}
    return {name: torch.tensor(value) for name, value in named.items() if value is not None}


def _names(batches: Batches) -> str:
    """What changes when an image comes, goes or is renamed, but not when all are moved."""
    names = "\0".join(path.name for path in batches.images.paths)
    return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:16]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested choices under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _same(before: Mapping[str, Any], now: Mapping[str, Any], free: Collection[str]) -> None:
    for name in sorted(before.keys() | now.keys()):
        if name not in free and before.get(name) != now.get(name):
            raise BadData(
                f"{name} was {before.get(name)!r} and is now {now.get(name)!r}: not the same run; "
                "resume with the former value, or start from scratch in another folder"
            )
