"""Signals: asked for at any moment, answered between two steps."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from cbml.errors import stop_signals

# One press of Ctrl-C can arrive twice, from the terminal and from torchrun, and a closed terminal
# is reported by the system and by its shell: whoever stopped at once would lose what was learned.
_ECHO_SECONDS = 2.0


class Interrupted(Exception):
    """Training was asked to stop and has written a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}")
        self.exit_code = 128 + number
        self.step = step


class StopRequest:
    """Which signal has asked for an end, 0 as long as none has."""

    def __init__(self, *, answers: bool = True) -> None:
        self.number = 0
        self._first, self._presses = 0.0, 0
        self._answers = answers

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Note the request; asked again, do not wait for the end of the step.

        A second signal that comes at once may be an echo of the first, and is answered; a third
        Ctrl-C is none.
        """
        del frame
        now = time.monotonic()
        self._presses += number == signal.SIGINT
        if not self.number:
            self.number, self._first = number, now
            self._say(b"\nstopping after this step; again to stop now\n")
        elif now - self._first > _ECHO_SECONDS or self._presses > 2:
            raise KeyboardInterrupt
        elif self.number == signal.SIGINT:
            self._say(b"stopping after this step; that came twice at once, again to stop now\n")

    def _say(self, line: bytes) -> None:
        """Straight to the descriptor: a handler must not enter a stream that is printing."""
        if self._answers:
            with contextlib.suppress(OSError):  # whoever was reading may have ended as well
                os.write(2, line)


@contextlib.contextmanager
def stop_request(*, answers: bool = True) -> Iterator[StopRequest]:
    """A request that Ctrl-C, SIGTERM and a closed terminal fill in inside the block.

    Args:
        answers: Whether this process acknowledges the signal at once.
    """
    request = StopRequest(answers=answers)
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, request.ask) for number in stop_signals()}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
