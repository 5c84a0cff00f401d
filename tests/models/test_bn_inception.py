"""BN-Inception against a second description of it, written layer by layer from its state dict."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.errors import BadData
from cbml.models import Embedder
from cbml.models.bn_inception import BNInception

# block: input, 1×1, 3×3 reduce, 3×3, double reduce, double, pool projection. 0: no such branch.
WIDTHS = """
3a  192   64   64   64   64   96   32
3b  256   64   64   96   64   96   64
3c  320    0  128  160   64   96    0
4a  576  224   64   96   96  128  128
4b  576  192   96  128   96  128  128
4c  576  160  128  160  128  160  128
4d  608   96  128  192  160  192  128
4e  608    0  128  192  192  256    0
5a 1056  352  192  320  160  224  128
5b 1024  352  192  320  192  224  128
"""


def public_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the public file's 1,000-class state dict, in its oldest form."""
    convolutions = {
        "conv1_7x7_s2": (64, 3, 7),
        "conv2_3x3_reduce": (64, 64, 1),
        "conv2_3x3": (192, 64, 3),
    }
    for line in WIDTHS.split("\n")[1:-1]:
        block, *numbers = line.split()
        width, one, reduce, three, double_reduce, double, projection = map(int, numbers)
        name = f"inception_{block}_"
        if one:
            convolutions[name + "1x1"] = (one, width, 1)
            convolutions[name + "pool_proj"] = (projection, width, 1)
        convolutions[name + "3x3_reduce"] = (reduce, width, 1)
        convolutions[name + "3x3"] = (three, reduce, 3)
        convolutions[name + "double_3x3_reduce"] = (double_reduce, width, 1)
        convolutions[name + "double_3x3_1"] = (double, double_reduce, 3)
        convolutions[name + "double_3x3_2"] = (double, double, 3)
    shapes: dict[str, tuple[int, ...]] = {"last_linear.weight": (1000, 1024)}
    shapes["last_linear.bias"] = (1000,)
    for name, (outgoing, incoming, side) in convolutions.items():
        shapes[f"{name}.weight"] = (outgoing, incoming, side, side)
        shapes[f"{name}.bias"] = (outgoing,)
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}_bn.{leaf}"] = (outgoing,)
    return shapes


def public_state(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in public_shapes().items():
        fan = max(1, int(torch.tensor(shape[1:]).prod())) if len(shape) > 1 else 4
        values = torch.randn(shape, generator=generator) * (2 / fan) ** 0.5
        state[name] = values.abs() + 0.5 if name.endswith("running_var") else values
    return state


def literal_forward(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """The network as a list of steps over the state dict; strides and pools as in Caffe."""

    def unit(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        x = functional.conv2d(x, weight, state[f"{name}.bias"], stride, weight.shape[2] // 2)
        mean, variance = state[f"{name}_bn.running_mean"], state[f"{name}_bn.running_var"]
        scale = state[f"{name}_bn.weight"] / (variance + 1e-5).sqrt()
        shift = state[f"{name}_bn.bias"] - mean * scale
        return (x * scale[:, None, None] + shift[:, None, None]).clamp(min=0)

    def pool_up(x: Tensor) -> Tensor:  # rounding up by hand: one more row and column of nothing
        odd = [(side - 3) % 2 for side in x.shape[2:]]
        return functional.max_pool2d(functional.pad(x, (0, odd[1], 0, odd[0]), value=-1e30), 3, 2)

    x = pool_up(unit("conv1_7x7_s2", images, 2))
    x = pool_up(unit("conv2_3x3", unit("conv2_3x3_reduce", x)))
    for block in ["3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"]:
        name = f"inception_{block}_"
        stride = 2 if block in {"3c", "4e"} else 1
        double = unit(name + "double_3x3_1", unit(name + "double_3x3_reduce", x))
        parts = [
            unit(name + "3x3", unit(name + "3x3_reduce", x), stride),
            unit(name + "double_3x3_2", double, stride),
        ]
        if stride == 2:
            parts.append(pool_up(x))
        else:
            border = functional.pad(x, (1, 1, 1, 1), value=-1e30 if block == "5b" else 0.0)
            windows = border.unfold(2, 3, 1).unfold(3, 3, 1)  # (B, C, H, W, 3, 3)
            pooled = windows.amax((-2, -1)) if block == "5b" else windows.mean((-2, -1))
            parts = [unit(name + "1x1", x), *parts, unit(name + "pool_proj", pooled)]
        x = torch.cat(parts, 1)
    return x


def test_the_public_state_dict_has_the_known_size() -> None:
    shapes = public_shapes()
    learned = sum(
        int(torch.tensor(shape).prod()) for name, shape in shapes.items() if "running" not in name
    )
    assert learned == 11_295_240
    ours = {name for name, _ in BNInception().named_parameters()}
    assert ours == {n for n in shapes if "running" not in n and not n.startswith("last_linear")}


@pytest.mark.parametrize("side", [227, 96])
def test_the_forward_pass_equals_the_literal_one(side: int) -> None:
    state = {name: value.double() for name, value in public_state().items()}
    network = BNInception().double().eval()
    network.load_state_dict({k: v for k, v in state.items() if not k.startswith("last_linear")})
    images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        ours, literal = network(images), literal_forward(state, images)
    assert ours.shape == (1, 1024, side // 32, side // 32)
    assert float(literal.abs().max()) > 1e-3, "a dead network would agree with anything"
    torch.testing.assert_close(ours, literal, rtol=1e-9, atol=1e-9 * float(literal.abs().max()))


@pytest.mark.parametrize("old", [False, True])
def test_the_public_file_loads_strictly(tmp_path: Path, old: bool) -> None:
    state = public_state()
    if old:  # the first public file keeps the batch norms as (1, C), in torch's old format
        state = {k: v[None] if "_bn." in k else v for k, v in state.items()}
    path = tmp_path / "bn_inception.pth"
    torch.save(state, path, _use_new_zipfile_serialization=not old)
    model = Embedder("bn_inception", dim=4, weights=path)
    assert model.pooling == "max"
    assert model.provenance.startswith("path: bn_inception.pth, sha256 ")
    loaded = model.backbone.state_dict()
    name = "inception_4c_double_3x3_2_bn.running_var"
    assert torch.equal(loaded[name], state[name].reshape(-1))


@pytest.mark.parametrize("change", ["missing", "surplus", "shape"])
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, change: str) -> None:
    state = public_state()
    name = "inception_3a_1x1.weight"
    if change == "missing":
        del state[name]
    elif change == "surplus":
        state["inception_6a_1x1.weight"] = state[name]
    else:
        state[name] = state[name][:-1]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(BadData, match=r"inception_[36]a_1x1\.weight"):
        Embedder("bn_inception", weights=tmp_path / "w.pth")


def test_sizes_that_do_not_halve_are_named() -> None:
    with torch.device("meta"), pytest.raises(BadData, match="multiple of 32"):
        BNInception()(torch.zeros(1, 3, 200, 200))
