"""What is optimized, at which learning rate, and the optimizer's state as plain named tensors."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cbml.errors import BadData, DamagedFile
from cbml.models import Embedder
from cbml.training.method import Method
from cbml.training.settings import Settings


def rate_factor(settings: Settings, step: int, steps: int) -> float:
    """What the learning rates are multiplied with in the update number `step`, counted from 0."""
    factor = 1.0
    if settings.warmup_steps:
        factor = min(1.0, (step + 1) / settings.warmup_steps)
    if settings.schedule == "step" and step >= settings.drop_at:
        factor *= settings.drop_factor
    if settings.schedule == "cosine":
        factor *= 0.5 * (1.0 + math.cos(math.pi * step / steps))
    return factor


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
