"""Every choice of the loop, and the optimizer and learning rates that follow from it."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from cbml.errors import BadData, DamagedFile, check_choice
from cbml.models import Embedder
from cbml.training.method import Method


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every choice of the training loop.

    Args:
        steps: Number of updates of the weights; with `epochs` None.
        epochs: Number of passes over the images, instead of `steps`.
        optimizer: "adam", with weight decay added to the gradient as in the authors' program,
            "adamw", with weight decay taken from the weights, or "sgd".
        momentum: Momentum of "sgd".
        dampening: Dampening of "sgd": what a gradient loses when it is added to the momentum.
        learning_rate: Before factors and schedule. 3e-5 in the authors' program.
        weight_decay: 5e-4 in the authors' program.
        backbone_factor: Multiple of the learning rate for the backbone.
        head_factor: The same for the linear layer and a learnt pooling power.
        loss_factor: The same for the loss's own parameters; None takes the loss's own
            `learning_rate_factor`, 1 where it has none.
        schedule: "step" multiplies by `drop_factor` once at `drop_at`, as the authors' program
            does; "constant"; "cosine" falls to zero at the last step.
        drop_at: The step at which "step" drops. 1200 in the authors' program, 3000 for GoogLeNet.
        drop_factor: 0.1 in the authors' program.
        warmup_steps: Updates over which the rate rises from nearly zero; 0 in the program.
        clip_norm: The gradient is shortened to this length; None never shortens it.
        chunk_size: Images in one forward pass. The loss still sees the whole batch and the gradient
            is the same: the batch is embedded once without and once with a graph. None does both at
            once.
        validate_every: Steps between validations; 0 validates at the end alone.
        patience: Validations without a better score after which training stops; None never.
        choose_by: The validation score that decides which model is best.
        checkpoint_every: Steps between checkpoints; 0 writes one at the end alone.
        keep_checkpoints: Number of newest checkpoints that are kept.
        bad_numbers: What NaN or infinity in embeddings, loss or gradient does: "stop", or "skip"
            the update, at most `skips_allowed` times in a row.
        skips_allowed: Number of updates in a row that may be skipped; see `bad_numbers`.
        collapse: "warn" when a batch looks collapsed, "stop", or "ignore".
    """

    steps: int | None = 200
    epochs: int | None = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
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
    chunk_size: int | None = None
    validate_every: int = 50
    patience: int | None = None
    choose_by: str = "recall@1"
    checkpoint_every: int = 50
    keep_checkpoints: int = 2
    bad_numbers: Literal["stop", "skip"] = "stop"
    skips_allowed: int = 10
    collapse: Literal["warn", "stop", "ignore"] = "warn"

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
        for name in ("momentum", "dampening"):
            if not 0 <= getattr(self, name) < 1:
                raise BadData(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadData(f"{name} must be above zero, got {value}")

    def _at_least(self, name: str, least: float) -> None:
        value = getattr(self, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise BadData(f"{name} must be at least {least}, got {value}")

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return dataclasses.asdict(self)


def rate_factor(settings: Settings, step: int, steps: int) -> float:
    """What the learning rates are multiplied with in the update number `step`, counted from 0.

    Args:
        step: updates done before this one.
    """
    factor = 1.0
    if settings.warmup_steps:
        factor = min(1.0, (step + 1) / settings.warmup_steps)
    if settings.schedule == "step" and step >= settings.drop_at:
        factor *= settings.drop_factor
    if settings.schedule == "cosine":
        factor *= 0.5 * (1.0 + math.cos(math.pi * step / steps))
    return factor


# Who is optimized, at which learning rate, and an optimizer's state as plain named tensors.


def build_optimizer(model: Embedder, method: Method, settings: Settings) -> torch.optim.Optimizer:
    """An optimizer of "backbone", "head" and the method's groups; empty groups are left out."""
    rates = base_learning_rates(method, settings)
    groups = [
        {"name": group["name"], "params": group["params"]}
        for group in model.parameter_groups(settings.learning_rate)
    ]
    for own in method.parameter_groups():
        if any(own.name == group["name"] for group in groups):
            raise BadData(f"parameter group {own.name!r}: there are two of that name")
        group = {"name": own.name, "params": list(own.parameters), "first_step": own.first_step}
        if own.weight_decay is not None:
            group["weight_decay"] = own.weight_decay
        if own.momentum is not None and settings.optimizer == "sgd":
            group["momentum"] = own.momentum
        groups.append(group)
    kept = [{**group, "lr": rates[group["name"]]} for group in groups if group["params"]]
    if not kept:
        raise BadData("neither the model nor the loss has a parameter to train")
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        momentum, dampening = settings.momentum, settings.dampening
        return torch.optim.SGD(kept, rate, momentum, dampening, weight_decay=decay)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(kept, lr=rate, weight_decay=decay)
    return torch.optim.Adam(kept, lr=rate, weight_decay=decay)


def base_learning_rates(method: Method, settings: Settings) -> dict[str, float]:
    """The learning rate of each group before the schedule; `loss_factor` overrides the loss's."""
    factors = {"backbone": settings.backbone_factor, "head": settings.head_factor}
    factors |= {group.name: group.factor for group in method.parameter_groups()}
    if settings.loss_factor is not None and "loss" in factors:
        factors["loss"] = settings.loss_factor
    return {name: settings.learning_rate * factor for name, factor in factors.items()}


def apply_learning_rates(
    optimizer: torch.optim.Optimizer,
    rates: Mapping[str, float],
    factor: float,
    *,
    step: int = 0,
    rest: Collection[str] = (),
) -> dict[str, float]:
    """Set the learning rate of every group for one update; gives them by name.

    It is zero for the groups that rest, and for those whose first step has not come.
    """
    for group in optimizer.param_groups:
        rests = group["name"] in rest or step < group.get("first_step", 0)
        group["lr"] = 0.0 if rests else rates[group["name"]] * factor
        if not math.isfinite(group["lr"]):
            raise BadData(f"the learning rate of the {group['name']} is {group['lr']}")
    return {group["name"]: group["lr"] for group in optimizer.param_groups}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of every parameter as `<index>.<name>` -> tensor."""
    return {
        f"{index}.{name}": value
        for index, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)  # SGD without momentum keeps None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave, over the same parameters."""
    parameters = _parameters(optimizer)
    state: dict[int, dict[str, Any]] = {}
    for key, saved in tensors.items():
        index, _, name = key.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise DamagedFile(f"checkpoint: optimizer state {key!r} belongs to no parameter")
        parameter = parameters[int(index)]
        if saved.dim() == 0:  # Adam counts its steps on the CPU
            value = saved.clone()
        else:
            # In the parameter's own memory layout: the order of numbers decides the rounding.
            value = torch.empty_like(parameter, requires_grad=False)
            if saved.shape != value.shape:
                raise DamagedFile(f"checkpoint: optimizer state {key!r} has a wrong shape")
            value.copy_(saved)
        state.setdefault(int(index), {})[name] = value
    for position, values in state.items():
        optimizer.state[parameters[position]] = values


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
