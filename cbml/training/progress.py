"""Who hears of a run: a bar for people, plain lines for log files, or nobody."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Bar", "Lines", "Listener", "StepReport", "best_listener", "described"]

_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one update gave.

    Args:
        step: its number, from 1.
        loss: of the batch.
        terms: parts of the loss by name.
        pictures: in the batch, those of all processes.
    """

    step: int
    loss: float
    terms: Mapping[str, float]
    pictures: int


class Listener:
    """What `fit` tells as it goes; this one hears all and says nothing."""

    def say(self, text: str) -> None:
        """Hear one line about the run.

        Args:
            text: the line.
        """

    def begin(self, step: int, steps: int) -> None:
        """Hear that updates begin.

        Args:
            step: updates done already.
            steps: updates in all.
        """

    def step(self, report: StepReport) -> None:
        """Hear of one update.

        Args:
            report: what it gave.
        """

    def end(self) -> None:
        """Hear that no more updates come."""


class Lines(Listener):
    """A line on standard error every ten seconds, with rate and remaining time."""

    def __init__(self) -> None:
        self._steps = self._done = self._pictures = 0
        self._started = self._last = 0.0

    def say(self, text: str) -> None:
        """Print a line.

        Args:
            text: the line.
        """
        print(text, file=sys.stderr, flush=True)

    def begin(self, step: int, steps: int) -> None:
        """Start the clock.

        Args:
            step: updates done already.
            steps: updates in all.
        """
        self._steps, self._done, self._pictures = steps, 0, 0
        self._started = self._last = time.monotonic()
        self._first = step

    def step(self, report: StepReport) -> None:
        """Print the loss, if the last line was long ago or this update is the last.

        Args:
            report: what the update gave.
        """
        self._done, self._pictures = self._done + 1, self._pictures + report.pictures
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES and report.step < self._steps:
            return
        self._last, passed = now, max(now - self._started, 1e-9)
        left = (self._steps - report.step) * passed / self._done
        rate = self._pictures / passed
        self.say(
            f"step {report.step} of {self._steps}: {described(report)}, "
            f"{rate:.0f} pictures/s, {left:.0f} s left"
        )

    def end(self) -> None:
        """Do nothing: every line was whole."""


class Bar(Listener):
    """One rich progress bar on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._pictures, self._started = 0, time.monotonic()
        self._task: Any = None
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def say(self, text: str) -> None:
        """Print a line above the bar.

        Args:
            text: the line.
        """
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, step: int, steps: int) -> None:
        """Show the bar.

        Args:
            step: updates done already.
            steps: updates in all.
        """
        self._started = time.monotonic()
        self._task = self._bar.add_task("", total=steps, completed=step)
        self._bar.start()

    def step(self, report: StepReport) -> None:
        """Move the bar.

        Args:
            report: what the update gave.
        """
        self._pictures += report.pictures
        rate = self._pictures / max(time.monotonic() - self._started, 1e-9)
        text = f"{described(report)} · {rate:.0f} pictures/s"
        self._bar.update(self._task, completed=report.step, description=text)

    def end(self) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()


def described(report: StepReport) -> str:
    """The loss and its parts in a few words.

    Args:
        report: what an update gave.
    """
    parts = " ".join(f"{name} {value:.3f}" for name, value in report.terms.items())
    return f"loss {report.loss:.3f}" + (f" ({parts})" if parts else "")


def best_listener() -> Listener:
    """A bar where standard error is a terminal, else lines."""
    return Bar() if sys.stderr.isatty() else Lines()
