"""The words and numbers that options accept, and the error that names what is wrong."""

import difflib
import math
import numbers
from typing import Any, Literal, TypeVar, get_args

__all__ = ["Averaging", "Dataset", "Reduction", "check_choice", "check_number"]

Averaging = Literal["log", "sqrt", "const"]
Reduction = Literal["mean", "sum"]
Dataset = Literal["cub", "cars", "sop", "inshop"]

Word = TypeVar("Word", bound=str)


def check_choice(value: Word, name: str, choices: Any) -> Word:
    """The value, if it is one of the words of a Literal type.

    Args:
        value: what the user gave.
        name: the argument's name, for the error.
        choices: the Literal type.
    """
    words = get_args(choices)
    if value not in words:
        near = difflib.get_close_matches(str(value), words, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}{hint}"
        )
    return value


def check_number(value: float, name: str, *, at_least: float = -math.inf) -> float:
    """The value as a float, if it is finite and not below a bound.

    Args:
        value: what the user gave.
        name: the argument's name, for the error.
        at_least: the smallest number allowed.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not (math.isfinite(value) and value >= at_least):
        bound = f" of at least {at_least:g}" if at_least > -math.inf else ""
        raise ValueError(f"{name} must be a finite number{bound}, got {value}")
    return float(value)
