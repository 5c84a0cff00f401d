"""Callbacks: what `fit` reports while it runs, and the one that shows it to people."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cbml.progress import Progress, reporter, say


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The loss of one update.

    Args:
        step: Number of the step, from 1.
        loss: Loss of the batch.
        terms: Parts of the loss by name.
        images: Number of images in the batch, those of all processes.
    """

    step: int
    loss: float
    terms: Mapping[str, float]
    images: int


class Callback:
    """What `fit` calls while it runs; this base class ignores everything."""

    def on_message(self, text: str) -> None:
        """Called with one line about the run.

        Args:
            text: The line to show.
        """

    def progress(self, label: str) -> Callable[[int, int], None]:
        """Give what hears how much of something is done, and how much there is in all.

        Args:
            label: What is counted, such as "images read".
        """
        del label
        return lambda done, total: None

    def begin(self, step: int, steps: int) -> None:
        """Called when updates begin.

        Args:
            step: Number of updates done already.
            steps: Number of updates in all.
        """

    def step(self, report: StepReport) -> None:
        """Called after each update.

        Args:
            report: Result of the update.
        """

    def end(self) -> None:
        """Called when no more updates come."""


class ProgressCallback(Callback):
    """One progress bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._images, self._started = 0, 0.0

    def on_message(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        if self._progress is not None:
            self._progress.say(text)
        else:
            say(text)

    def progress(self, label: str) -> Callable[[int, int], None]:
        """A bar of its own, but for work within the updates, whose bar is there already."""
        return super().progress(label) if self._progress is not None else reporter(label)

    def begin(self, step: int, steps: int) -> None:
        """Show the bar."""
        self._progress = Progress("step", steps, done=step)
        self._images, self._started = 0, time.monotonic()

    def step(self, report: StepReport) -> None:
        """Move the bar; the rate is the mean since the beginning, validations included."""
        assert self._progress is not None
        self._images += report.images
        rate = self._images / max(time.monotonic() - self._started, 1e-9)
        text = described(report, short=self._progress.narrow)
        self._progress.show(report.step, f"{text}, {rate:.0f} images/s")

    def end(self) -> None:
        """Leave the bar as it stands."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None


def described(report: StepReport, *, short: bool = False) -> str:
    """The loss and its parts in a few words.

    Args:
        short: Leave out the parts.
    """
    parts = " ".join(f"{name} {value:.3f}" for name, value in report.terms.items())
    return f"loss {report.loss:.3f}" + (f" ({parts})" if parts and not short else "")
