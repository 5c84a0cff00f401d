"""The machine a run depends on: versions and hardware, freed memory, Ctrl-C and SIGTERM."""

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import cbml

# What may hold the libraries back from using all that the processor can do.
_LIMITS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
    "FAISS_OPT_LEVEL",
    "NPY_DISABLE_CPU_FEATURES",
)


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """Plain facts about program and machine, for records.

    Args:
        device: What the model is on.
        processes: Number of processes that train together.
    """
    return {
        "cbml": cbml.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": _processor(),
        "instruction_sets": instruction_sets(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def instruction_sets() -> str:
    """What torch computes with, and what variables of the environment hold back in which library.

    Other instruction sets sum in another order, and so round the last bits differently.
    """
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return ", ".join([torch.backends.cpu.get_cpu_capability(), *limits])


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What has changed, one line each."""
    return [
        f"{name} was {before.get(name)!r} and is now {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _commit() -> str | None:
    """The commit of the source this program runs from, with a mark if it was changed since."""
    home = Path(cbml.__file__).parent
    try:
        words = ["git", "-C", str(home), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# Memory of feature maps, kept between steps.
#
# The C library of Linux gives memory of large tensors back to the system as soon as they are freed,
# and each step has to ask for all of it again, page by page. Keeping it makes a step on a CPU about
# a seventh quicker; the process then holds what its largest step needed until it ends.

# Numbers of glibc's malloc.h. M_MMAP_MAX = 0: large tensors come from the heap, too.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_MOST = 2**31 - 1
_AHEAD = 2**28


def keep_freed_memory() -> bool:
    """Keep freed memory for the next step, in this whole process; gives whether it could be done.

    Other systems and other C libraries stay as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is None:
        return False
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _AHEAD))
    return all(choose(option, value) == 1 for option, value in wanted)


def return_freed_memory() -> None:
    """Give the system back what was freed so far, also where it is kept for the next step.

    Blocks of another size than before leave holes in what is kept: a trial at another crop, or
    images embedded in other numbers, would add to the memory of all steps that follow.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


# Ctrl-C and SIGTERM: asked for at any moment, answered between two steps.

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

    def __init__(self, *, answers: bool = True) -> None:
        self.number = 0
        self._first = 0.0
        self._answers = answers

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Note the wish; asked a second time, do not wait for the end of the step.

        Args:
            frame: where it arrived; not used.
        """
        del frame
        now = time.monotonic()
        if self.number and now - self._first > _ECHO_SECONDS:
            raise KeyboardInterrupt
        if not self.number:
            self.number, self._first = number, now
            if self._answers:
                # Straight to the descriptor: a handler must not enter a stream that is printing.
                os.write(2, b"\nstopping after this step; again to stop now\n")


@contextlib.contextmanager
def stop_request(*, answers: bool = True) -> Iterator[StopRequest]:
    """A request that SIGINT and SIGTERM fill in inside the block.

    Args:
        answers: Whether this process says at once that it was heard.
    """
    request = StopRequest(answers=answers)
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, request.ask) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
