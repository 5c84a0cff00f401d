"""What a result may depend on beside its settings: versions, hardware, commit."""

import os
import platform
import subprocess
from pathlib import Path
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
        device: what the model is on.
        processes: how many train together.
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
    """What has changed, one line each.

    Args:
        before: facts of then.
        now: facts of now.
    """
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
