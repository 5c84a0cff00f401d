"""A-BIER: its worked example, who gains by a step, and its limits."""

import pytest
import torch
from torch import Tensor, nn

from cbml.methods import BIER, AdversarialBIER
from cbml.methods.bier import LEARNERS, _Reversed, adversarial_loss
from cbml.models import Embedder
from tests.methods.examples import ANGLES, circle, loss_of
from tests.methods.test_bier import SHARED


def adversary() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    values = ([[1.0, 0, 0], [0, 1, -1]], [0.0, 0.5], [[1.0, 1], [0, -1]], [0.1, 0.0])
    for parameter, value in zip(network.parameters(), values, strict=True):
        parameter.data = torch.tensor(value)
    return network


def test_worked_example() -> None:
    network = adversary()
    torch.testing.assert_close(network(SHARED[1]), torch.tensor([[2.6, -1.5], [3.6, -1.5]]))
    assert float(adversarial_loss(*SHARED, network).detach()) == pytest.approx(-4.5025, abs=1e-6)


def product(first: Tensor, second: Tensor, network: nn.Module) -> float:
    return -float(adversarial_loss(first, second, network).detach())


def test_adversaries_raise_the_product_and_learners_lower_it() -> None:
    network, rows = adversary(), [each.clone().requires_grad_() for each in SHARED]
    adversarial_loss(*(_Reversed.apply(each) for each in rows), network).backward()
    with torch.no_grad():
        moved = [each - 1e-3 * each.grad for each in rows]
        assert product(*moved, network) < 4.5025
        for parameter in network.parameters():
            parameter -= 1e-3 * parameter.grad
    assert product(*SHARED, network) > 4.5025


def attached(**options: float) -> tuple[Embedder, AdversarialBIER]:
    method = AdversarialBIER(hidden=4, **options)
    model = Embedder("conv4", dim=16, heads=method.heads(16), seed=1)
    method.attach(model)
    return model, method


def test_plain_loops_give_the_same_penalty() -> None:
    model, method = attached(weight_penalty=2.0)
    features = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    layers = [model.head[name][-1].weight for name in LEARNERS]
    outputs = [(features @ layer.T).tolist() for layer in layers]
    expected, number = 0.0, 0
    for i in range(3):
        for j in range(i + 1, 3):
            network = method.adversaries[number]
            number += 1
            guesses = network(torch.tensor(outputs[j])).tolist()
            squares = [
                (g * r) ** 2
                for own, guess in zip(outputs[i], guesses, strict=True)
                for g, r in zip(own, guess, strict=True)
            ]
            expected -= sum(squares) / len(squares)
            layers += [network[0].weight, network[2].weight]
            for bias in (network[0].bias, network[2].bias):
                expected += 2.0 * max(0.0, sum(b * b for b in bias.tolist()) - 1.0)
    for layer in layers:
        columns = list(zip(*layer.tolist(), strict=True))
        terms = [(sum(w * w for w in column) - 1.0) ** 2 for column in columns]
        expected += 2.0 * sum(terms) / len(terms)
    found = method.auxiliary(features, [model.head[name][-1].weight for name in LEARNERS])
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


def test_without_independence_it_is_bier() -> None:
    parts = dict(zip(LEARNERS, map(circle, ANGLES), strict=True))
    plain = loss_of(BIER(), parts).total
    assert float(loss_of(AdversarialBIER(independence=0.0), parts).total) == float(plain)


def test_adversaries_have_a_group_without_weight_decay() -> None:
    _, method = attached()
    (group,) = method.parameter_groups()
    assert (group.factor, group.weight_decay, len(group.parameters)) == (1.0, 0.0, 12)
