"""The words and numbers that options accept, and the error that names what is wrong."""

import difflib
import math
import numbers
from typing import Any, Literal, TypeVar, get_args

__all__ = [
    "Averaging",
    "Dataset",
    "Reduction",
    "check_choice",
    "check_count",
    "check_flag",
    "check_number",
]

Averaging = Literal["log", "sqrt", "const"]
Reduction = Literal["mean", "sum"]
Dataset = Literal["cub", "cars", "sop", "inshop"]

Word = TypeVar("Word", bound=str)


def check_choice(value: Word, name: str, choices: Any) -> Word:
    """The value, if it is one of the words of a Literal type, in any case.

    Args:
        value: what the user gave.
        name: the argument's name, for the error.
        choices: the Literal type.
    """
    words: tuple[Word, ...] = get_args(choices)
    for word in words:
        if isinstance(value, str) and value.lower() == word:
            return word
    near = difflib.get_close_matches(str(value).lower(), words, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}{hint}")


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
        value: what the user gave.
        name: the argument's name, for the error.
        at_least: the smallest number allowed.
        above: a number that is already too small.
        at_most: the largest number allowed.
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
    """The value, if it is True or False.

    Args:
        value: what the user gave.
        name: the argument's name, for the error.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_count(value: int, name: str, *, at_least: int = 1) -> int:
    """The value as an int, if it is a whole number and not too small.

    Args:
        value: what the user gave.
        name: the argument's name, for the error.
        at_least: the smallest number allowed.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, got {value}")
    return int(value)
