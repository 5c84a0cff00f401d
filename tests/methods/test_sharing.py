"""Sharing-DML: the worked example of its adversary, its limits, and what it refuses."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.methods import Sharing
from cbml.methods.margin import MarginTriplets
from cbml.methods.mic import decorrelation
from cbml.models import Embedder
from cbml.training import BatchInfo, StepLoss
from tests.oracles import methods

CLASSES, DIM = 4, 8
INFO = BatchInfo(torch.arange(12) // 3, torch.arange(12))


def worked() -> nn.Sequential:
    network = nn.Sequential(
        nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False)
    ).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1], [1, -1]]))
        network[2].weight.copy_(torch.tensor([[1.0, 0, 1], [0, 2, 0]]))
    return network


@pytest.mark.parametrize("length", [1.0, 7.0])
def test_worked_example_of_the_adversary(length: float) -> None:
    first = (length * torch.tensor([[1.0, 2], [2, -1]])).double().requires_grad_()
    second = torch.tensor([[1.0, 0.3], [1, 1]]).double()
    network = worked()
    units = [functional.normalize(part, dim=1) for part in (second, first)]
    value = decorrelation(*units, network)
    assert value.item() == pytest.approx(-0.146615, abs=1e-6)
    value.backward()
    expected = -torch.tensor([[-0.062277, 0.031138], [0.024, 0.048]]).double() / length
    torch.testing.assert_close(first.grad, expected, atol=1e-6, rtol=0)
    weights, found = network[0].weight, network[0].weight.grad
    plain = methods.agreement
    step = torch.zeros_like(weights)
    step[0, 1] = 1e-6
    lists = [functional.normalize(part.detach(), dim=1).tolist() for part in (second, first)]
    moved, stayed = (
        plain(*lists, (weights + sign * step).tolist(), network[2].weight.tolist())
        for sign in (1.0, 0.0)
    )
    assert found[0, 1].item() == pytest.approx((moved - stayed) / 1e-6, abs=1e-5)


def attached(**options: object) -> tuple[Embedder, Sharing]:
    method = Sharing(num_classes=CLASSES, hidden=16, **options)  # type: ignore[arg-type]
    model = Embedder("conv4", dim=DIM, heads=method.heads(DIM), batch_norm="frozen", seed=1)
    method.attach(model)
    return model, method


def loss_of(model: Embedder, method: Sharing) -> tuple[StepLoss, dict[str, Tensor]]:
    pixels = torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    outputs = model.forward_outputs(pixels, method.parts)
    found: StepLoss = method(outputs, INFO)
    return found, dict(outputs.parts)


@pytest.mark.parametrize("rule", ["standard", "full", "random"])
def test_the_terms_add_up(rule: str) -> None:
    model, method = attached(rule=rule)
    found, parts = loss_of(model, method)
    first = MarginTriplets(num_classes=CLASSES, seed=0)(parts["discriminative"], INFO)
    second = MarginTriplets(num_classes=CLASSES, rule=rule, seed=1)(parts["shared"], INFO)
    layers = [method.regressor[place] for place in (0, 2)]
    apart = methods.agreement(
        parts["shared"].tolist(),
        parts["discriminative"].tolist(),
        *(layer.weight.tolist() for layer in layers),
        *(layer.bias.tolist() for layer in layers),
    )
    expected = first.item() + 0.3 * second.item() + 1500.0 * apart
    assert found.total.item() == pytest.approx(expected, rel=1e-4)


def test_without_sharing_it_is_the_plain_margin_loss() -> None:
    model, method = attached(shared_weight=0.0, decorrelation=0.0)
    found, parts = loss_of(model, method)
    plain = MarginTriplets(num_classes=CLASSES)(parts["discriminative"], INFO)
    assert found.total.item() == pytest.approx(plain.item(), rel=1e-6)
    found.total.backward()
    others = [*model.head["shared"].parameters(), *method.regressor.parameters()]
    assert all(float(parameter.grad.abs().sum()) == 0.0 for parameter in others)


def test_weights_count_in_the_embedding() -> None:
    model, _ = attached(weights=(1.0, 0.5))
    outputs = model.forward_outputs(torch.randn(2, 3, 16, 16))
    cosines = {name: part[0] @ part[1] for name, part in outputs.parts.items()}
    expected = (cosines["discriminative"] + 0.25 * cosines["shared"]) / 1.25
    found = outputs.embeddings[0] @ outputs.embeddings[1]
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


def test_betas_and_regressor_have_groups_of_their_own() -> None:
    _, method = attached()
    betas, regressor = method.parameter_groups()
    assert (betas.factor, betas.weight_decay, len(betas.parameters)) == (50.0, 0.0, 2)
    assert (regressor.factor, regressor.weight_decay, len(regressor.parameters)) == (1.0, None, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "classes"}, "shared triplets cross classes"),
        ({"rule": "any"}, "rule"),
        ({"weights": (1.0,)}, "one number for each of two heads"),
        ({"decorrelation": -1.0}, "decorrelation"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attached(**options)


def test_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadData, match="dim 1: two heads need"):
        Sharing(num_classes=2).heads(1)
    assert [head.dim for head in Sharing(num_classes=2).heads(9)] == [5, 4]
