"""How a model is trained, in small frozen dataclasses that need no torch."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_origin, get_type_hints

from cbml.errors import BadData, check_choice

MOST = 10**9 - 1  # the names of checkpoints have nine digits, and are put in order by them
#: Settings that may differ between a run and its continuation: how long it is, what is written how
#: often, what is done about trouble.
MAY_CHANGE = (
    *("steps", "epochs", "patience", "validate_every", "checkpoint_every"),
    *("keep_checkpoints", "collapse", "non_finite", "skips_allowed"),
)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The numbers of the optimizer and of its schedule.

    Args:
        momentum: Momentum of "sgd".
        dampening: Dampening of "sgd": what a gradient loses when it is added to the momentum.
        learning_rate: Before factors and schedule. 3e-5 in the authors' program.
        weight_decay: 5e-4 in the authors' program.
        backbone_factor: Multiple of the learning rate for the backbone.
        head_factor: The same for the linear layer and a learned pooling power.
        loss_factor: The same for the loss's own parameters; None takes the loss's own
            `learning_rate_factor`, 1 where it has none.
        schedule: "step" multiplies by `drop_factor` once at `drop_at`, as the authors' program
            does; "constant"; "cosine" falls to zero at the last step.
        drop_at: The step at which "step" drops. 1200 in the authors' program, 3000 for GoogLeNet.
        drop_factor: 0.1 in the authors' program.
        warmup_steps: Updates over which the rate rises from nearly zero; 0 in the program.
        clip_norm: The gradient is shortened to this length; None never shortens it.
        ema: Validate and keep an exponential moving average of the weights, whose window is this
            share of the steps; 0 keeps the weights themselves, as the authors' program does.
    """

    momentum: float = 0.9
    dampening: float = 0.0
    learning_rate: float = 1e-4
    weight_decay: float = 5e-4
    backbone_factor: float = 1.0
    head_factor: float = 1.0
    loss_factor: float | None = None
    schedule: Literal["step", "constant", "cosine"] = "constant"
    drop_at: int = 1200
    drop_factor: float = 0.1
    warmup_steps: int = 0
    clip_norm: float | None = None
    ema: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How often the loop validates and saves, and what it does about trouble.

    Args:
        validate_every: Steps between validations; 0 validates at the end alone.
        patience: Validations without a better score after which training stops; None never.
        checkpoint_every: Steps between checkpoints; 0 writes one at the end alone.
        keep_checkpoints: Number of newest checkpoints that are kept.
        non_finite: What NaN or infinity in embeddings, loss or gradient does: "stop", or "skip"
            the update, at most `skips_allowed` times in a row.
        skips_allowed: Number of updates in a row that may be skipped; see `non_finite`.
        collapse: "warn" when a batch looks collapsed, "stop", or "ignore".
    """

    validate_every: int = 50
    patience: int | None = None
    checkpoint_every: int = 50
    keep_checkpoints: int = 2
    non_finite: Literal["stop", "skip"] = "stop"
    skips_allowed: int = 10
    collapse: Literal["warn", "stop", "ignore"] = "warn"


@dataclass(frozen=True, kw_only=True)
class Settings(LoopSettings, OptimizerSettings):
    """Every choice of the training loop; those of the two base classes too.

    Args:
        steps: Number of updates of the weights; with `epochs` None.
        epochs: Number of passes over the images, instead of `steps`.
        optimizer: "adam", with weight decay added to the gradient as in the authors' program,
            "adamw", with weight decay taken from the weights, or "sgd".
        chunk_size: Images in one forward pass. The loss still sees the whole batch and the gradient
            is the same: the batch is embedded once without and once with a graph. None does both at
            once.
        choose_by: The validation score that decides which model is best.
    """

    steps: int | None = 200
    epochs: int | None = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    chunk_size: int | None = None
    choose_by: str = "recall@1"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            if get_origin(hints[field.name]) is Literal:
                word = check_choice(getattr(self, field.name), field.name, hints[field.name])
                object.__setattr__(self, field.name, word)  # frozen, but in lower case
        if (self.steps is None) == (self.epochs is None):
            raise BadData("steps and epochs: give exactly one of the two")
        for name in ("steps", "epochs", "chunk_size", "patience", "keep_checkpoints"):
            self._at_least(name, 1)
        for name in ("weight_decay", "warmup_steps", "validate_every", "checkpoint_every"):
            self._at_least(name, 0)
        for name in ("backbone_factor", "head_factor", "loss_factor", "drop_factor", "drop_at"):
            self._at_least(name, 0)
        for name in ("momentum", "dampening", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise BadData(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadData(f"{name} must be above zero, got {value}")

    def _at_least(self, name: str, least: float) -> None:
        value = getattr(self, name)
        if isinstance(value, int) and value > MOST:
            raise BadData(f"{name} must be at most {MOST}, got {value}")
        if value is not None and not (math.isfinite(value) and value >= least):
            raise BadData(f"{name} must be at least {least}, got {value}")

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return dataclasses.asdict(self)
