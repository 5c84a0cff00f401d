"""How far a long loop has come, on standard error: a bar for people, plain lines for log files."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

__all__ = ["shown_progress"]

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def shown_progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to call with the number done so far; it shows rate and remaining time.

    Args:
        label: what is counted.
        total: how many there will be, None when nobody knows.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    start = last = time.monotonic()

    def line(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last, rate = now, done / (now - start)
            rest = "" if total is None else f" of {total}, {(total - done) / rate:.0f} s left"
            print(f"{label}: {done}{rest}, {rate:.1f} per second", file=sys.stderr, flush=True)

    yield line
