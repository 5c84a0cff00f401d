"""What can be wrong with what users hand us; the command line turns each kind into an exit code."""

import difflib
import signal
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, NoReturn, TypeVar, get_args

from cbml.program import installation

__all__ = [
    "BadData",
    "DamagedFile",
    "FolderInUse",
    "MissingExtra",
    "check_choice",
    "nearest",
    "stop",
    "stop_signals",
    "stopped_by",
]

Word = TypeVar("Word", bound=str)
_received: list[int] = []


class BadData(ValueError):
    """Images, tables or folders that cannot be used as they are. Exit code 3."""


class FolderInUse(BadData):
    """A folder that another process is writing. Exit code 3."""


class DamagedFile(ValueError):
    """A saved file that is incomplete, altered or not what it claims to be. Exit code 4."""


class MissingExtra(ImportError):
    """An optional part that is not installed; the message says how to install it. Exit code 1."""

    def __init__(self, package: str, extra: str) -> None:
        self.extra = extra
        super().__init__(
            f"the package {package!r} is not installed: run  {installation(f'cbml[{extra}]')}"
        )


def stop_signals() -> list[signal.Signals]:
    """The signals that ask for an end: Ctrl-C, SIGTERM and, unless nohup ignores it, a closed
    terminal. Exit code 128 and the number of the signal.
    """
    asked = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        asked.append(hangup)
    return asked


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Leave by an exception, so that half-written files are cleaned away: a handler of signals.

    Args:
        number: The signal.
        frame: Where it interrupted the program.
    """
    del frame
    _received.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def stopped_by() -> int:
    """The first signal that `stop` has answered, 0 as long as there is none.

    Compiled code may swallow the exception and raise an error of its own: what fails after a signal
    failed because of it.
    """
    return _received[0] if _received else 0


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """A hint for an error message: the known name that was probably meant, else all of them.

    Args:
        word: The name that was given.
        known: The names that could have been given.
        prefix: Text in front of the proposed name, such as "loss.".
    """
    names = list(known)
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return f"did you mean {prefix + near[0]!r}?" if near else f"use one of {', '.join(names)}"


def check_choice(value: Word, name: str, choices: Any) -> Word:
    """The value, if it is one of the allowed words, in any case; else BadData.

    Args:
        value: The word that was given.
        name: Name of the argument, for the error.
        choices: The allowed words, as a Literal type or as a tuple.
    """
    words: tuple[Word, ...] = get_args(choices) or choices
    for word in words:
        if isinstance(value, str) and value.lower() == word:
            return word
    near = difflib.get_close_matches(str(value).lower(), words, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise BadData(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}{hint}")
