"""Ctrl-C and SIGTERM: asked for at any moment, answered between two steps."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# One press of Ctrl-C can arrive twice: from the terminal and from torchrun.
_ECHO_SECONDS = 2.0


class Interrupted(Exception):
    """Training was asked to stop and has written a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}")
        self.exit_code = 128 + number
        self.step = step


class StopRequest:
    """Which signal has asked for an end, 0 as long as none has."""

    def __init__(self) -> None:
        self.number = 0
        self._first = 0.0

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Note the wish; asked a second time, do not wait for the end of the step.

        Args:
            number: of the signal.
            frame: where it arrived; not used.
        """
        del frame
        now = time.monotonic()
        if self.number and now - self._first > _ECHO_SECONDS:
            raise KeyboardInterrupt
        if not self.number:
            self.number, self._first = number, now


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """A request that SIGINT and SIGTERM fill in inside the block."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, request.ask) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
