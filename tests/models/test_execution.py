"""Layout, precision and compilation change the speed of a step, not what it computes."""

import pytest
import torch

from cbml.errors import BadData
from cbml.models import Embedder, Execution, execution
from tests.program import run

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def gradient(options: Execution) -> tuple[torch.Tensor, torch.Tensor]:
    model = Embedder("conv4", dim=6)
    options.prepare(model)
    vectors = options.run(model, IMAGES)
    (vectors[0] @ vectors[1]).backward()
    assert model.head.weight.grad is not None
    return vectors.detach(), model.head.weight.grad


def test_channels_last_is_a_layout_and_nothing_else() -> None:
    model = Embedder("conv4", dim=6)
    names = list(model.state_dict())
    assert Execution(channels_last=True).prepare(model) is model
    weight = model.get_parameter("backbone.4.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert list(model.state_dict()) == names
    for ours, plain in zip(
        gradient(Execution(channels_last=True)), gradient(Execution()), strict=True
    ):
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-4)
    Execution().prepare(model)
    assert weight.is_contiguous()


def test_half_precision_is_used_and_stays_near() -> None:
    plain, _ = gradient(Execution())
    half, _ = gradient(Execution(precision="float16"))
    assert half.dtype == torch.float32
    assert 1e-7 < float((half - plain).abs().max()) < 0.02


def test_compilation_is_asked_for_and_keeps_names_and_numbers() -> None:
    model = Embedder("conv4", dim=6)
    names = list(model.state_dict())
    options = Execution(compile=True)
    options.prepare(model)
    assert model._compiled_call_impl is not None
    assert list(model.state_dict()) == names


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_vectors() -> None:
    plain, plain_gradient = gradient(Execution())
    ours, our_gradient = gradient(Execution(compile=True))
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(our_gradient, plain_gradient, atol=1e-5, rtol=1e-4)


def test_the_default_on_a_cpu_is_channels_last_in_float32() -> None:
    assert Execution.default("cpu") == Execution(channels_last=True, fold=True)
    assert Execution.default("cpu").as_dict() == {
        "channels_last": True,
        "precision": "float32",
        "compile": False,
        "fold": True,
    }
    assert not Execution.default("mps").channels_last


def test_unknown_precision_is_named() -> None:
    with pytest.raises(BadData, match="precision 'fp8': use one of float32"):
        Execution(precision="fp8")  # type: ignore[arg-type]


BFLOAT16 = """
import torch
from cbml.models import Embedder, Execution
options = Execution(precision="bfloat16")
model = options.prepare(Embedder("conv4", dim=6))
vectors = options.run(model, torch.randn(64, 3, 32, 32))
(vectors[0] @ vectors[1]).backward()
torch.nn.Linear(1280, 512)(torch.randn(64, 1280)).sum().backward()
print("ran")
"""


def test_bfloat16_runs_or_is_refused_but_never_ends_the_process() -> None:
    done = run(code=BFLOAT16)
    if done.returncode == 0:
        assert done.stdout == "ran\n"
    else:
        assert done.returncode == 1, "a signal would be negative"
        last = done.stderr.splitlines()[-1]
        assert "BadData: precision 'bfloat16': this machine announces AMX" in last


def test_a_machine_that_stops_bfloat16_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        execution, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    execution.bfloat16_survives.cache_clear()
    with pytest.raises(BadData, match="ONEDNN_MAX_CPU_ISA"):
        Execution(precision="bfloat16").prepare(Embedder("conv4", dim=6))
    monkeypatch.setattr(execution, "_PROBE", "pass")
    execution.bfloat16_survives.cache_clear()
    Execution(precision="bfloat16").prepare(Embedder("conv4", dim=6))
    execution.bfloat16_survives.cache_clear()
