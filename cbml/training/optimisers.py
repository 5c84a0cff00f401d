"""Who is optimised, at which rate, and an optimiser's state as plain named tensors."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cbml.errors import BadData, DamagedFile
from cbml.models import Embedder
from cbml.training.settings import Settings

__all__ = ["apply_rates", "base_rates", "build_optimiser", "optimiser_tensors", "restore_optimiser"]


def build_optimiser(model: Embedder, loss: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Adam over the groups "backbone", "head" and "loss"; groups without parameters are left out.

    Args:
        model: gives the first two groups.
        loss: gives the third: proxies and the like are always trained.
        settings: rates, factors and weight decay.
    """
    rates = base_rates(loss, settings)
    groups = model.parameter_groups(settings.learning_rate)
    own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    groups.append({"name": "loss", "params": own})
    kept = [{**group, "lr": rates[group["name"]]} for group in groups if group["params"]]
    if not kept:
        raise BadData("neither the model nor the loss has a parameter to train")
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimiser == "adamw":
        return torch.optim.AdamW(kept, lr=rate, weight_decay=decay)
    return torch.optim.Adam(kept, lr=rate, weight_decay=decay)


def base_rates(loss: nn.Module, settings: Settings) -> dict[str, float]:
    """The learning rate of each group before the schedule.

    Args:
        loss: may have a `learning_rate_factor` of its own.
        settings: rate and factors.
    """
    own = settings.loss_factor
    if own is None:
        own = float(getattr(loss, "learning_rate_factor", 1.0))
    return {
        "backbone": settings.learning_rate * settings.backbone_factor,
        "head": settings.learning_rate * settings.head_factor,
        "loss": settings.learning_rate * own,
    }


def apply_rates(
    optimiser: torch.optim.Optimizer, rates: Mapping[str, float], factor: float
) -> dict[str, float]:
    """Set the rate of every group for one update; gives them by name.

    Args:
        optimiser: as `build_optimiser` gave it.
        rates: as `base_rates` gave them.
        factor: of the schedule.
    """
    for group in optimiser.param_groups:
        group["lr"] = rates[group["name"]] * factor
        if not math.isfinite(group["lr"]):
            raise BadData(f"the learning rate of the {group['name']} is {group['lr']}")
    return {group["name"]: group["lr"] for group in optimiser.param_groups}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of every parameter as `<number>.<name>` -> tensor.

    Args:
        optimiser: as `build_optimiser` gave it.
    """
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(_parameters(optimiser))
        for name, value in optimiser.state.get(parameter, {}).items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave.

    Args:
        optimiser: over the same parameters.
        tensors: by the same names.
    """
    parameters = _parameters(optimiser)
    state: dict[int, dict[str, Any]] = {}
    for key, saved in tensors.items():
        number, _, name = key.partition(".")
        if not number.isdecimal() or int(number) >= len(parameters):
            raise DamagedFile(f"checkpoint: optimiser state {key!r} belongs to no parameter")
        parameter = parameters[int(number)]
        if saved.dim() == 0:  # Adam counts its steps on the CPU
            value = saved.clone()
        else:
            # In the parameter's own memory layout: the order of numbers decides the rounding.
            value = torch.empty_like(parameter, requires_grad=False)
            if saved.shape != value.shape:
                raise DamagedFile(f"checkpoint: optimiser state {key!r} has a wrong shape")
            value.copy_(saved)
        state.setdefault(int(number), {})[name] = value
    for place, values in state.items():
        optimiser.state[parameters[place]] = values


def _parameters(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
