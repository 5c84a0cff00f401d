"""What holds for all tests."""

import os
import signal
from collections.abc import Iterator

import pytest

# A shell that starts the tests in the background has them ignore Ctrl-C, `nohup` a hangup, and
# every program that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Every signal is noted here, whatever handler a test has installed. Training answers Ctrl-C and
# SIGTERM itself, so without this a signal would only fail the test that happens to run.
_signals, _notify = os.pipe()
for end in (_signals, _notify):
    os.set_blocking(end, False)
signal.set_wakeup_fd(_notify, warn_on_full_buffer=False)


# Files whose tests wait for servers and processes most of the time, and a long one that nobody else
# could shorten at the end. Begun first, they wait while other workers compute.
_FIRST = (
    "test_service_safety.py",
    "gallery/test_processes.py",
    "test_stores.py",
    "test_step_memory.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits, and give long tests the time that they need on a busy machine."""
    items.sort(key=lambda item: not str(item.path).endswith(_FIRST))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run one test, then end the session if it was asked to stop."""
    try:
        return (yield)
    finally:
        try:
            received = os.read(_signals, 4096)
        except BlockingIOError:
            received = b""
        asked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} & set(received)
        if asked:
            item.session.shouldstop = f"stopped by {signal.Signals(min(asked)).name}"
