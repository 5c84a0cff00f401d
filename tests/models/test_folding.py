"""Folded batch norms: the same numbers and gradients, and undone where the order misleads."""

import copy

import pytest
import torch
from torch import Tensor, nn

from cbml import Embedder, Execution
from cbml.models.execution import fold_batch_norms

IMAGES = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def make(backbone: str, batch_norm: str = "frozen_statistics") -> Embedder:
    model = Embedder(backbone, dim=16, weights="none", batch_norm=batch_norm, seed=3)
    generator = torch.Generator().manual_seed(2)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):  # statistics that are not those of a fresh network
            norm.running_mean = torch.randn(norm.num_features, generator=generator) * 0.1
            norm.running_var = torch.rand(norm.num_features, generator=generator) + 0.5
    return model.train()


def gradients(model: Embedder) -> tuple[Tensor, dict[str, Tensor]]:
    """In float64: in float32 the two orders of rounding may fall on two sides of a ReLU or choose
    two numbers of a maximum, and the gradients differ by some per cent where neither is wrong."""
    model.zero_grad()
    model.backbone.double()
    rows = model(IMAGES.double())
    (rows * torch.arange(16.0)).sum().backward()
    return rows.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("backbone", "least"),
    [
        ("resnet18", 20),
        ("googlenet", 57),
        ("bn_inception", 69),
        ("conv4", 4),
        ("efficientnet_lite0", 49),  # timm's layers: norms that activate, padding as TensorFlow's
    ],
)
def test_values_and_gradients_stay(backbone: str, least: int) -> None:
    plain = make(backbone)
    folded = copy.deepcopy(plain)
    assert fold_batch_norms(folded, IMAGES[:1]) >= least
    with torch.no_grad():
        torch.testing.assert_close(folded(IMAGES), plain(IMAGES), atol=1e-5, rtol=1e-4)
    rows, expected = gradients(plain)
    found_rows, found = gradients(folded)
    torch.testing.assert_close(found_rows, rows, atol=1e-6, rtol=0.0)  # the head is in float32
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        scale = float(grad.abs().max()) + 1e-6
        assert float((found[name] - grad).abs().max()) < 1e-5 * scale, name
    assert plain.state_dict().keys() == folded.state_dict().keys()


@pytest.mark.parametrize("backbone", ["resnet18", "efficientnet_lite0"])
def test_trained_norms_are_computed_the_usual_way(backbone: str) -> None:
    plain = make(backbone, batch_norm="trained")
    folded = copy.deepcopy(plain)
    fold_batch_norms(folded, IMAGES[:1])
    torch.testing.assert_close(folded(IMAGES), plain(IMAGES))
    first = next(m for m in folded.modules() if isinstance(m, nn.BatchNorm2d))
    again = next(m for m in plain.modules() if isinstance(m, nn.BatchNorm2d))
    torch.testing.assert_close(first.running_mean, again.running_mean)


class Misleading(nn.Module):
    """Its norm is written behind the convolution and used before it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.norm.running_mean = torch.ones(3)
        nn.init.constant_(self.convolution.weight, -1.0)  # folded, everything would be below zero
        nn.init.zeros_(self.convolution.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        return self.convolution(self.norm(images)).clamp(min=0.0).mean(dim=(2, 3))


def test_a_misleading_order_is_noticed_and_undone() -> None:
    model = Misleading()
    before = model.eval()(IMAGES)
    assert fold_batch_norms(model, IMAGES) == 0
    torch.testing.assert_close(model(IMAGES), before)


def test_preparing_twice_and_copying_change_nothing() -> None:
    model = make("conv4")
    execution = Execution.default("cpu")
    assert execution.fold
    once = execution.run(execution.prepare(model).eval(), IMAGES)
    twice = execution.run(execution.prepare(model).eval(), IMAGES)
    torch.testing.assert_close(once, twice)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(0.5)
    torch.testing.assert_close(execution.run(model, IMAGES), once)
    assert not torch.allclose(execution.run(copied, IMAGES), once)
