"""A loss from its name and plain options, as a command line or a table of runs has them."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from cbml.errors import nearest
from cbml.losses.additions import WithProxies, WithVariance
from cbml.losses.contrastive_bayesian import FINE_GRAINED, PRODUCTS
from cbml.losses.ratios import LinearRatio, QuadraticRatio
from cbml.losses.table import LOSSES

RATIOS: dict[str, LinearRatio | QuadraticRatio] = {
    "fine_grained": FINE_GRAINED,
    "products": PRODUCTS,
}
_RATIO = "ratio."
_CONSTRAINT = ("variance_weight", "target_mix", "variance_reduction")


def build_loss(
    name: str | type[nn.Module],
    options: Mapping[str, Any],
    *,
    classes: int,
    dim: int,
    seed: int,
) -> nn.Module:
    """The loss of a name with options; what only the images and the model tell is filled in.

    Beside a loss's own options there are three families:

        ratio, ratio.<number>    for losses with a likelihood ratio: "products" (the default) or
                                 "fine_grained", and single numbers of it replaced; "quadratic"
                                 with all four numbers given
        variance_weight, target_mix, variance_reduction
                                 for any loss: given `variance_weight`, a loss that lacks the
                                 variance constraint gets it, as in the paper's MS + MVC
        proxy_weight             for any loss of pairs: one proxy for each class beside the batch

    Args:
        name: A name in the table of losses, in any case, or a class of your own.
        options: Options by name, in any case; a misspelled one is a ValueError that names the
            nearest.
        classes: Number of classes, for losses with proxies.
        dim: Width of the embeddings, for losses with proxies.
        seed: Random seed, for losses that draw start values.
    """
    kind = name if isinstance(name, type) else _find(name.lower())
    options = {option.lower(): value for option, value in options.items()}
    known = inspect.signature(kind).parameters
    given: dict[str, Any] = {"num_classes": classes, "embedding_size": dim, "seed": seed}
    own = {option: value for option, value in given.items() if option in known}
    constraint: dict[str, Any] = {}
    proxy_weight = options.pop("proxy_weight", None)
    if "ratio" in known:
        own["ratio"] = _ratio(options)
    for option, value in options.items():
        if "ratio" in known and (option == "ratio" or option.startswith(_RATIO)):
            continue
        if option in known:
            own[option] = value
        elif option in _CONSTRAINT and "variance_weight" not in known:
            constraint[option] = value
        else:
            hint = nearest(option, known, "loss.")
            called = name if isinstance(name, str) else name.__name__
            raise ValueError(f"loss.{option}: {called} has no such option; {hint}")
    loss = _with_constraint(kind(**own), constraint)
    if proxy_weight is None:
        return loss
    sizes = {"num_classes": classes, "embedding_size": dim}
    return WithProxies(loss, **sizes, proxy_weight=proxy_weight)


def _find(name: str) -> type[nn.Module]:
    if name not in LOSSES:
        raise ValueError(f"loss {name!r}: no such loss; {nearest(name, LOSSES)}")
    return LOSSES[name]


def _with_constraint(loss: nn.Module, options: Mapping[str, Any]) -> nn.Module:
    if not options:
        return loss
    if "variance_weight" not in options:
        raise ValueError(f"loss.{next(iter(options))}: needs loss.variance_weight beside it")
    return WithVariance(loss, **options)


def _ratio(options: Mapping[str, Any]) -> LinearRatio | QuadraticRatio:
    """The likelihood ratio: a named one, with single numbers replaced."""
    name: Any = options.get("ratio", "products")
    start: LinearRatio | QuadraticRatio | None = None
    if isinstance(name, LinearRatio | QuadraticRatio):
        name, start = type(name).__name__, name
    elif isinstance(name, str) and name.lower() in RATIOS:
        start = RATIOS[name.lower()]
    elif not isinstance(name, str) or name.lower() != "quadratic":
        raise ValueError(f"loss.ratio={name}: use one of {', '.join((*RATIOS, 'quadratic'))}")
    numbers = {
        key.removeprefix(_RATIO): value for key, value in options.items() if key.startswith(_RATIO)
    }
    fields = [field.name for field in dataclasses.fields(start or QuadraticRatio)]
    for number in numbers:
        if number not in fields:
            hint = nearest(number, fields, f"loss.{_RATIO}")
            raise ValueError(f"loss.ratio.{number}: {name} has no such number; {hint}")
    if start is not None:
        return dataclasses.replace(start, **numbers)
    missing = [f"loss.ratio.{field}" for field in fields if field not in numbers]
    if missing:
        raise ValueError(f"loss.ratio=quadratic: give {', '.join(missing)} too")
    return QuadraticRatio(**numbers)
