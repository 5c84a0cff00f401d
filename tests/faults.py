"""Faults on purpose: system calls that fail, and a disk that is full."""

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass
class Calls:
    """How often a function was called so far."""

    count: int = 0


@contextlib.contextmanager
def failing_call(name: str, nth: int, *, spared: str = "") -> Iterator[Calls]:
    """The n-th call of a function of `os` fails inside the block.

    Calls whose first argument begins with `spared`, unless that is empty, are not counted.
    """
    real, calls = getattr(os, name), Calls()

    def faulty(*arguments: object, **options: object) -> object:
        if not (spared and str(arguments[0]).startswith(spared)):
            calls.count += 1
            if calls.count == nth:
                raise OSError(errno.EIO, "injected fault")
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, faulty)
        yield calls


@contextlib.contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file grows beyond so many bytes inside the block."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
