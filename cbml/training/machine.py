"""The machine a run depends on: versions and hardware, memory."""

import ctypes
import math
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cbml
from cbml.models import Embedder, Execution
from cbml.training.batches import EMBEDDED
from cbml.training.gradients import has_trained_batch_norm

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
    """Versions, hardware and settings of this process, for records.

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


# Memory of a training step: estimated before the first one, and cut where it is scarce.

# Python, torch, the other libraries, what `keep_freed_memory` asks for ahead and what it cannot use
# again: by benchmarks/memory.py, what `cbml train` takes besides the parts that are counted below.
_PROGRAM = 1.25e9
# Besides the weights: their gradient, two moments of Adam, and the weights that were best.
_COPIES_OF_WEIGHTS = 4
_FLOAT = 4
# An estimate may be wrong: a batch that must be cut anyway is cut into pieces with room to spare.
_CAUTION = 0.9
# What may be taken: a laptop of 8 GB has other programs, a GPU is there for this one.
_LARGEST = {"cpu": 3e9}
_SHARE = {"cpu": 0.5, "cuda": 0.9}


@dataclass(frozen=True)
class StepMemory:
    """What a training step needs, in bytes.

    Args:
        fixed: The program, the weights and what goes with them, the pixels of a batch.
        per_image: Bytes of each image of a forward pass, until its gradient is known.
        embedding: Bytes of validation, besides `fixed`.
        batch: Images of a step in this process.
        divisible: Whether the batch may be embedded in chunks.
    """

    fixed: float
    per_image: float
    embedding: float
    batch: int
    divisible: bool

    def peak(self, chunk_size: int | None = None) -> float:
        """The largest need of a run.

        Args:
            chunk_size: Images of a forward pass; None for the whole batch.
        """
        images = self.batch if chunk_size is None else min(chunk_size, self.batch)
        return self.fixed + max(images * self.per_image, self.embedding)

    def fitting_chunk(self, budget: float) -> int | None:
        """The size of the fewest equal chunks whose peak is well within a budget.

        None where the whole batch fits, or where it must not be cut. One image at a time is the
        least there is.

        Args:
            budget: Bytes.
        """
        if not self.divisible or self.peak() <= budget:
            return None
        most = max(1, int((_CAUTION * budget - self.fixed) / self.per_image))
        return math.ceil(self.batch / math.ceil(self.batch / most))


def step_memory(
    model: Embedder, execution: Execution, *, crop: int, batch: int, parts: Sequence[str] = ()
) -> StepMemory:
    """What a training step of a model needs, from forward passes of two images and of three.

    One image alone would leave trained batch norm without a variance.

    Autograd is asked for the tensors that it keeps for the backward pass, which adds the gradients
    of a layer's input and output.

    Args:
        model: As `execution.prepare` gave it, in training mode. Its running statistics move.
        execution: How it will be run.
        crop: Side of the images.
        batch: Images of a step in this process.
        parts: What the method asks of the model besides embeddings.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    totals, largest = [], 0.0
    for count in (2, 3):
        kept = _kept_bytes(model, execution, count, crop, parts)
        sizes = [size for address, size in kept.items() if address not in own]
        totals.append(sum(sizes))
        largest = max(sizes, default=0) / count
    weights = sum(_bytes(parameter) for parameter in model.parameters())
    pixels = 3 * crop * crop
    fixed = _PROGRAM if next(model.parameters()).device.type == "cpu" else 0.0
    fixed += (1 + _COPIES_OF_WEIGHTS) * weights
    # As floats in this step; as bytes for this one and those that are prepared ahead.
    fixed += batch * pixels * (_FLOAT + 3)
    return StepMemory(
        fixed,
        totals[1] - totals[0] + 2 * largest,
        EMBEDDED * (2 * largest + pixels * _FLOAT),
        batch,
        not has_trained_batch_norm(model),
    )


def memory_budget(device: torch.device) -> float:
    """Bytes that a run may take: on a CPU at most 3 GB, and at most half of what is free.

    Args:
        device: What the model is on.
    """
    free = _free_bytes(device)
    return min(_LARGEST.get(device.type, math.inf), _SHARE.get(device.type, 0.5) * free)


def _free_bytes(device: torch.device) -> float:
    """What is free in this machine, this container or this GPU; infinity where nobody says."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    free = math.inf
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = float(line.split()[1]) * 1024
    limit, used = (_text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdecimal() and used.isdecimal():
        free = min(free, float(limit) - float(used))
    return free


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""


def _kept_bytes(
    model: nn.Module, execution: Execution, count: int, crop: int, parts: Sequence[str]
) -> dict[int, int]:
    """Place and size of every storage that autograd keeps for the backward pass."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    device = next(model.parameters()).device
    images = torch.zeros(count, 3, crop, crop, device=device)
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        # The graph lives until all is counted: a place that is freed would be counted once.
        outputs = execution.run_outputs(model, images, parts)
    del outputs
    return kept


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
