"""Exemplar: a worked example, plain loops, and its limits."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.methods import Exemplar
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Settings
from cbml.training.optimizers import build_optimizer
from tests.oracles.unlabeled import linear_softmax
from tests.training.small import embedder


def exemplar(weight: Tensor, bias: Tensor | None = None) -> Exemplar:
    method = Exemplar(num_images=len(weight), embedding_size=weight.shape[1])
    method.weight.data.copy_(weight)
    if bias is not None:
        method.bias.data.copy_(bias)
    return method


def loss_of(method: Exemplar, h: Tensor, y: list[int]) -> Tensor:
    indices = torch.tensor(y)
    outputs = Outputs(functional.normalize(h, dim=1), {"raw": h})
    return method(outputs, BatchInfo(torch.zeros_like(indices), indices)).total


H = torch.tensor([[0.5, 1], [1.5, -0.5]])
W = torch.tensor([[0.2, 0.4], [-0.3, 0.1], [0.6, -0.2]])
Y = [0, 2]


def test_the_worked_example() -> None:
    assert loss_of(exemplar(W), H, Y).item() == pytest.approx(0.649056, abs=1e-6)


def test_plain_loops_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(7, 3, generator=generator), torch.randn(7, generator=generator)
    h, y = torch.randn(5, 3, generator=generator), [6, 0, 3, 3, 1]
    expected = linear_softmax(h.tolist(), y, weight.tolist(), bias.tolist())
    assert loss_of(exemplar(weight, bias), h, y).item() == pytest.approx(expected, rel=1e-5)


def test_limits() -> None:
    assert loss_of(exemplar(torch.zeros(3, 2)), H, Y).item() == pytest.approx(math.log(3))
    method = exemplar(W, torch.full((3,), 4.0))
    loss = loss_of(method, H, Y)
    assert loss.item() == pytest.approx(0.649056, abs=1e-6), "a constant in b changes nothing"
    loss.backward()
    assert method.weight.grad is not None
    torch.testing.assert_close(method.weight.grad.sum(dim=0), torch.zeros(2), atol=1e-6, rtol=0)


def test_images_that_are_not_seen_do_not_shrink() -> None:
    method = exemplar(W)
    optimizer = build_optimizer(embedder(), method, Settings(weight_decay=0.1))
    method.weight.grad, method.bias.grad = torch.zeros(3, 2), torch.zeros(3)
    optimizer.step()
    assert torch.equal(method.weight.data, W)
