"""How far a long loop has come, on standard error: a bar for people, plain lines for log files."""

import contextlib
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["Progress", "counted", "duration", "reporter", "say"]

_SECONDS_BETWEEN_LINES = 10.0
_WIDE = 110


def duration(seconds: float) -> str:
    """A time as people say it: "40 s", "12 min", "1 h 31 min".

    Args:
        seconds: How long.
    """
    if round(seconds) < 60:
        return f"{max(round(seconds), 0)} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def counted(count: int, what: str) -> str:
    """A number and what it counts: "1 step", "1,200 steps".

    Args:
        count: How many.
        what: One of them, such as "step".
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def say(text: str) -> None:
    """Print a line on standard error; where nobody can read it any more, work goes on.

    Args:
        text: The line to print.
    """
    with contextlib.suppress(OSError):  # `2>&1 | tee log`, and Ctrl-C has ended tee
        print(text, file=sys.stderr, flush=True)


class Progress:
    """A bar on a terminal, else a line every ten seconds, with rate and remaining time.

    Args:
        label: What is counted, such as "images embedded".
        total: Number of items in all, None when unknown.
        done: Number of items done before this loop.
    """

    def __init__(self, label: str, total: int | None, *, done: int = 0) -> None:
        self.label = label
        self.total = total
        self._first = done
        self._started = self._last = time.monotonic()
        self._bar: Any = _bar(label, total, done) if sys.stderr.isatty() else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def narrow(self) -> bool:
        """Whether a bar is shown for which words must be saved."""
        return self._bar is not None and self._bar.console.width < _WIDE

    def show(self, done: int, text: str = "") -> None:
        """Move the bar, or print a line if the last was long ago, and the last text in any case.

        Args:
            done: Number of items done so far.
            text: What else to say; the rate when empty.
        """
        now, last = time.monotonic(), bool(text) and done == self.total
        rate = (done - self._first) / max(now - self._started, 1e-9)
        left = f", {duration((self.total - done) / rate)} left" if self.total and rate else ""
        text = text or f"{rate:.1f} per second"
        if self._bar is not None:
            self._bar.update(0, completed=done, description=text + left)
        elif last or now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            rest = "" if self.total is None else f" of {self.total}"
            self.say(f"{self.label} {done}{rest}: {text}{left}")

    def say(self, text: str) -> None:
        """Print a line; a bar stays below it.

        Args:
            text: The line to print.
        """
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            say(text)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()


def reporter(label: str) -> Callable[[int, int], None]:
    """A function of done and total that shows a `Progress` from its first call to the last.

    Args:
        label: What is counted, such as "images read".
    """
    shown: list[Progress] = []

    def show(done: int, total: int) -> None:
        if not shown:
            # What the first call brings was done in no time that anybody measured.
            shown.append(Progress(label, total or None, done=done))
        shown[0].show(done)
        if done == total:
            shown.pop().close()

    return show


def _bar(label: str, total: int | None, done: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    wide = console.width >= _WIDE
    bar = RichProgress(
        TextColumn(label),
        BarColumn(bar_width=24 if wide else 6),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        console=console,
    )
    bar.add_task("", total=total, completed=done)
    bar.start()
    return bar
