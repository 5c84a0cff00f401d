"""How a model is run: memory layout, precision, compilation. Each is an option that runs record."""

import contextlib
import functools
import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cbml.errors import BadData
from cbml.outputs import Outputs

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a model is run: four options that change speed; by default all are off.

    `Execution.default(device)` gives what benchmarks/models.py found to be quickest without any
    change of precision on a CPU.

    Args:
        channels_last: Keep the numbers of one pixel together in memory. Same results up to the
            order of additions.
        precision: "float32", or what autocast computes the backbone in: "bfloat16", "float16".
            The head, the length and the losses stay in float32.
        compile: Let torch.compile fuse the network; the first step takes minutes.
        fold: Let convolutions do the work of frozen batch norms; see `cbml.models.execution`. Same
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
        """What to use on a device by default.

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
            model: The model, on its device already.
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
        tensors = itertools.chain(model.parameters(), model.buffers())
        if not all(each.is_contiguous(memory_format=layout) for each in tensors if each.dim() == 4):
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
            model: The model that `prepare` gave.
            images: (B, 3, H, W), on the model's device.
        """
        with self._context(images.device):
            result: Tensor = model(self._laid_out(images))
        return result

    def run_outputs(self, model: nn.Module, images: Tensor, parts: Sequence[str] = ()) -> Outputs:
        """One forward pass as chosen, with the parts of the model; compiled only where it has none.

        Args:
            model: The model that `prepare` gave.
            images: (B, 3, H, W), on the model's device.
            parts: Further parts, as for `Embedder.forward_outputs`.
        """
        several = getattr(model, "heads", ()) or getattr(model, "head_kind", None)
        if not parts and not several:
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
        model: Any module; one without parameters counts as on the CPU.
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


# Batch norms with frozen statistics, folded into the convolutions before them.
#
# A frozen batch norm is one scale and one shift for each channel, and so is what a convolution's
# weight and bias can do by themselves:
#
#     norm(conv(x)) = conv(x; weight · scale, bias · scale + shift)
#     scale = γ / √(variance + ε),   shift = β - mean · scale
#
# The large feature maps are then read and written once less in each direction. Names, parameters
# and gradients stay what they were; a norm that is in training mode is computed the usual way.
# timm's norms, which also do the activation behind them, and its convolutions that pad as
# TensorFlow does are folded in the same way.

_TOLERANCE = 1e-4  # of unit vectors


def fold_batch_norms(model: nn.Module, images: Tensor) -> int:
    """Fold each batch norm into the convolution before it; gives how many were folded.

    Which norm follows which convolution is read from the order of a module's children. The model
    is run before and after: if its output moves, the order was misleading and all is undone.

    Args:
        images: Some input for the comparison. (B, 3, H, W)
    """
    found = (pair for module in model.modules() for pair in _pairs(module))
    pairs = [pair for pair in found if "forward" not in vars(pair[0])]  # not folded before
    training = model.training
    model.eval()
    with torch.no_grad():
        before = model(images)
        for convolution, norm in pairs:
            setattr(convolution, "forward", _Folded(convolution, norm))  # noqa: B010
            setattr(norm, "forward", _PassedOn(norm))  # noqa: B010
        after = model(images)
    model.train(training)
    if float((after - before).abs().max()) > _TOLERANCE:
        for convolution, norm in pairs:
            del vars(convolution)["forward"], vars(norm)["forward"]
        return 0
    return len(pairs)


class _Folded:
    """The forward of a convolution that does the work of the norm behind it."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        self.convolution, self.norm = convolution, norm

    def __call__(self, images: Tensor) -> Tensor:
        convolution, norm = self.convolution, self.norm
        if norm.training or norm.running_var is None or norm.running_mean is None:
            plain: Tensor = type(convolution).forward(convolution, images)
            return plain
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)  # (C,)
        shift = norm.bias - norm.running_mean * scale
        if convolution.bias is not None:
            shift = shift + convolution.bias * scale
        weight = convolution.weight * scale[:, None, None, None]
        if type(convolution) is not nn.Conv2d:
            images = sys.modules["timm.layers"].pad_same(
                images, convolution.kernel_size, convolution.stride, convolution.dilation
            )
        result: Tensor = convolution._conv_forward(images, weight, shift)
        return result


class _PassedOn:
    """The forward of a norm whose work is done already, unless it is in training."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        self.norm = norm

    def __call__(self, features: Tensor) -> Tensor:
        norm = self.norm
        if norm.training or norm.running_var is None:
            normed: Tensor = type(norm).forward(norm, features)
            return normed
        for name in ("drop", "act"):  # timm's norms do these, too
            layer = norm._modules.get(name)
            features = features if layer is None else layer(features)
        return features


def _pairs(module: nn.Module) -> Iterator[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    # Exactly these classes: a subclass may do more than its name says.
    convolutions: tuple[type, ...] = (nn.Conv2d,)
    norms: tuple[type, ...] = (nn.BatchNorm2d,)
    layers = sys.modules.get("timm.layers")  # a network of timm has brought it along
    if layers is not None:
        convolutions, norms = (*convolutions, layers.Conv2dSame), (*norms, layers.BatchNormAct2d)
    for first, second in itertools.pairwise(module.children()):
        if type(first) in convolutions and type(second) in norms:
            assert isinstance(first, nn.Conv2d)
            assert isinstance(second, nn.BatchNorm2d)
            padded_plainly = first.padding_mode == "zeros"
            if second.affine and padded_plainly and first.out_channels == second.num_features:
                yield first, second
