"""How a model is run: memory layout, precision, compilation. Each is an option that runs record."""

import contextlib
import functools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cbml.errors import BadData
from cbml.models.folding import fold_batch_norms
from cbml.outputs import Outputs

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The four choices that change the speed of a step; the defaults are the plain way.

    `Execution.default(device)` gives what benchmarks/models.py found to be quickest without any
    change of precision on a CPU.

    Args:
        channels_last: keep the numbers of one pixel together in memory. Same results up to the
            order of additions.
        precision: "float32", or what autocast computes the backbone in: "bfloat16", "float16".
            The head, the length and the losses stay in float32.
        compile: let torch.compile fuse the network; the first step takes minutes.
        fold: let convolutions do the work of frozen batch norms; see `cbml.models.folding`. Same
            results up to rounding.
    """

    channels_last: bool = False
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    fold: bool = False

    def __post_init__(self) -> None:
        if self.precision != "float32" and self.precision not in _DTYPES:
            raise BadData(f"precision {self.precision!r}: use one of float32, {', '.join(_DTYPES)}")

    @classmethod
    def default(cls, device: str | torch.device) -> "Execution":
        """What to use on a device when nobody says.

        On a CPU, channels-last float32 with folded batch norms, 1.2 to 2.1 times as quick as the
        plain step by benchmarks/models.py. On CUDA, channels-last and bfloat16 where the card has
        it, as its makers advise; not measured by us.

        Args:
            device: "cpu", "cuda", "cuda:1", "mps" ...
        """
        kind = torch.device(device).type
        if kind == "cuda" and torch.cuda.is_available() and torch.cuda.is_bf16_supported():
            return cls(channels_last=True, precision="bfloat16")
        return cls(channels_last=kind in ("cpu", "cuda"), fold=kind == "cpu")

    def prepare(self, model: nn.Module) -> nn.Module:
        """The same model, laid out in memory and compiled as chosen; its values do not change.

        Args:
            model: on its device already.
        """
        device = device_of(model)
        if self.precision == "bfloat16" and device.type == "cpu" and not bfloat16_survives():
            raise BadData(
                "precision 'bfloat16': this machine announces AMX instructions but stops programs "
                "that use them; use precision='float32', or start with the environment variable "
                "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
            )
        # nn.Module.to only knows one layout per call, and only four-dimensional tensors have it.
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        model.to(memory_format=layout)
        if self.fold:
            size = getattr(getattr(model, "preprocessing", None), "crop", 64)
            generator = torch.Generator().manual_seed(0)
            images = torch.rand(1, 3, size, size, generator=generator).to(device)
            fold_batch_norms(model, images)
        if self.compile:
            model.compile()  # in place: the names of its parameters stay
        return model

    def run(self, model: nn.Module, images: Tensor) -> Tensor:
        """One forward pass as chosen.

        Args:
            model: as `prepare` gave it.
            images: (B, 3, H, W), on the model's device.
        """
        with self._context(images.device):
            result: Tensor = model(self._laid_out(images))
        return result

    def run_outputs(self, model: nn.Module, images: Tensor, parts: Sequence[str] = ()) -> Outputs:
        """One forward pass as chosen, with the parts of the model; compiled only where it has none.

        Args:
            model: as `prepare` gave it.
            images: (B, 3, H, W), on the model's device.
            parts: further parts, as for `Embedder.forward_outputs`.
        """
        if not parts and not getattr(model, "heads", ()):
            return Outputs(self.run(model, images))
        with self._context(images.device):
            outputs: Outputs = model.forward_outputs(  # type: ignore[operator]
                self._laid_out(images), parts
            )
        return outputs

    def _laid_out(self, images: Tensor) -> Tensor:
        if self.channels_last:
            return images.contiguous(memory_format=torch.channels_last)
        return images

    def _context(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=_DTYPES[self.precision])

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return asdict(self)


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are.

    Args:
        model: any module; one without parameters counts as on the CPU.
    """
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


# Some virtual machines announce AMX and end a process that uses it (SIGILL), which no exception
# handler can catch; so a child process tries first. Convolutions alone may pass there.
_PROBE = """
import torch
from torch import nn
network = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(64 * 36, 64))
with torch.autocast("cpu", dtype=torch.bfloat16):
    network(torch.ones(32, 3, 8, 8)).float().sum().backward()
"""


@functools.cache
def bfloat16_survives() -> bool:
    """Whether this machine's CPU runs bfloat16; where it announces AMX, a child process tries."""
    announced = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    if not announced or not sys.executable:
        return True
    child = subprocess.run(
        [sys.executable, "-c", _PROBE], check=False, capture_output=True, timeout=300
    )
    return child.returncode == 0
