"""SGD: momentum and dampening of the settings, a momentum of its own for a group."""

import pytest
import torch
from torch import Tensor, nn

from cbml.errors import BadData
from cbml.training import BatchInfo, Method, ParameterGroup, Settings, StepLoss
from cbml.training.optimizers import build_optimizer, optimizer_tensors, restore_optimizer
from tests.training.small import embedder


class Forgetful(Method):
    """A method whose own parameter has no momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def parameter_groups(self) -> list[ParameterGroup]:
        return [ParameterGroup("own", [self.weight], weight_decay=0.0, momentum=0.0)]

    def forward(self, outputs: object, batch: BatchInfo) -> StepLoss:
        raise NotImplementedError


def updated(parameter: Tensor, optimizer: torch.optim.Optimizer, gradients: list[float]) -> float:
    before = parameter.detach().clone()
    for gradient in gradients:
        parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    return float((parameter.detach() - before).mean())


def test_momentum_and_dampening_and_a_group_without() -> None:
    settings = Settings(
        optimizer="sgd", learning_rate=0.1, momentum=0.5, dampening=0.5, weight_decay=0.0
    )
    model, method = embedder(), Forgetful()
    optimizer = build_optimizer(model, method, settings)
    # The first step takes the gradient whole; the second half of it and half of the first.
    head = model.head.bias
    assert updated(head, optimizer, [1.0, 2.0]) == pytest.approx(-0.1 * (1 + 0.5 + 1.0))
    assert updated(method.weight, optimizer, [1.0, 2.0]) == pytest.approx(-0.1 * 3)


def test_the_momentum_is_saved_and_restored() -> None:
    settings = Settings(optimizer="sgd", learning_rate=0.1, weight_decay=0.0)
    model = embedder()
    optimizer = build_optimizer(model, Method(), settings)
    updated(model.head.bias, optimizer, [1.0])
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    again = build_optimizer(model, Method(), settings)
    restore_optimizer(again, saved)
    assert updated(model.head.bias, again, [0.0]) == pytest.approx(-0.09)


@pytest.mark.parametrize("option", ["momentum", "dampening"])
def test_impossible_values_are_refused(option: str) -> None:
    with pytest.raises(BadData, match=option):
        Settings(**{option: 1.0})
