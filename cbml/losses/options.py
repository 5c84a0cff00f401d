"""The words and numbers that options accept, and the error that names what is wrong."""

import math
import numbers
from typing import Literal

Averaging = Literal["log", "sqrt", "const"]
Reduction = Literal["mean", "sum"]
Dataset = Literal["cub", "cars", "sop", "inshop"]


def check_number(
    value: float,
    name: str,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """The value as a float, if it is finite and within its bounds.

    Args:
        value: The value that was given.
        name: The argument's name, for the error.
        at_least: The smallest number allowed.
        above: A number that is already too small.
        at_most: The largest number allowed.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not (math.isfinite(value) and at_least <= value <= at_most and value > above):
        bounds = [
            f"{words} {bound:g}"
            for words, bound in (("of at least", at_least), ("above", above), ("at most", at_most))
            if math.isfinite(bound)
        ]
        wanted = " ".join(["a finite number", " and ".join(bounds)]).strip()
        raise ValueError(f"{name} must be {wanted}, got {value}")
    return float(value)


def check_flag(value: bool, name: str) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_count(value: int, name: str, *, at_least: int = 1) -> int:
    """The value as an int, if it is a whole number and not too small.

    Args:
        value: The value that was given.
        name: Name of the argument, for the error.
        at_least: The smallest number allowed.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, got {value}")
    return int(value)
