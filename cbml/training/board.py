"""The lines of metrics.jsonl as curves for tensorboard."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cbml.errors import MissingExtra

_NO_CURVES = ("step", "best", "seconds")


class Board:
    """Writes every number of a line to event files, each under its own name.

    Args:
        folder: for the event files.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard") from None
        self._make: Any = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the numbers of one line.

        Args:
            line: as for `Records.add`.
        """
        step = int(line["step"])
        if self._writer is None:
            # A resumed run does some steps again: tensorboard forgets what it had from them.
            self._writer = self._make(str(self._folder), purge_step=step)
        for name, value in _numbers(line):
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Bring all that was added to the disk."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """End the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _numbers(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and (prefix or name not in _NO_CURVES):
            yield f"{prefix}{name}", float(value)
