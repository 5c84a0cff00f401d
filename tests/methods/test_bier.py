"""BIER: its worked examples, plain loops, and its limits."""

import pytest
import torch

from cbml.errors import BadData
from cbml.methods import BIER
from cbml.methods.bier import LEARNERS, shared_activity
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo
from tests.methods.examples import ANGLES, LABELS, circle, loss_of
from tests.methods.test_hdc import random_levels
from tests.oracles import methods

ROWS = dict(zip(LEARNERS, map(circle, ANGLES), strict=True))
SAME = LABELS[:, None] == LABELS[None, :]
SHARED = (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0, -1.0], [2.0, 1.0, 0.0]]))


@pytest.mark.parametrize(
    ("boosting", "expected", "total"),
    [
        ("simple", [1.779888, 0.031491, 1.333236], 3.144615),
        ("gradient", [1.779888, 0.034700, 0.074171], 1.888759),
    ],
)
def test_worked_example(boosting: str, expected: list[float], total: float) -> None:
    method = BIER(boosting=boosting)
    terms = method.boosted([*ROWS.values()], SAME)
    assert [float(term) / 3 for term in terms] == pytest.approx(expected, abs=1e-6)
    assert float(loss_of(method, ROWS).total) == pytest.approx(total, abs=2e-6)


def test_worked_example_of_independence() -> None:
    assert float(shared_activity(*SHARED)) == pytest.approx(1.25, abs=1e-6)
    weights = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 2.0]])
    alone = BIER(weight_penalty=1.0).auxiliary(torch.zeros(2, 3), [weights, torch.eye(3)])
    assert float(alone) == pytest.approx(8.03125, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("boosting", ["simple", "gradient"])
def test_plain_loops_give_the_same(seed: int, boosting: str) -> None:
    parts, labels = random_levels(seed)
    learners = [*parts.values()]
    found = BIER(boosting=boosting).boosted(learners, labels[:, None] == labels[None, :])
    expected = methods.bier([each.tolist() for each in learners], labels.tolist(), boosting)
    assert [float(term) for term in found] == pytest.approx(expected, rel=1e-7)


def test_without_shrinkage_every_later_weight_is_the_same() -> None:
    rows = ROWS["first"]
    first, second, third = BIER(shrinkage=0.0).boosted([rows] * 3, SAME)
    assert float(second) == pytest.approx(float(third), rel=1e-12)
    positives = BIER(shrinkage=0.0, negative_cost=1e-9).boosted([rows] * 2, SAME)
    flat = methods.bier([rows.tolist()] * 2, LABELS.tolist(), "simple", eta=0.0, cost=1e-9)
    assert [float(each) for each in positives] == pytest.approx(flat, rel=1e-9)
    assert float(second) != pytest.approx(float(first), rel=1e-3)


def test_a_batch_of_one_class_is_finite() -> None:
    losses = BIER().boosted([*ROWS.values()], torch.ones(4, 4, dtype=torch.bool))
    assert all(bool(loss.isfinite()) for loss in losses)


def test_independence_reaches_the_layers_alone() -> None:
    method = BIER(independence=1.0)
    model = Embedder("conv4", dim=16, heads=method.heads(16), seed=1)
    method.attach(model)
    features = torch.randn(4, 64, requires_grad=True)
    parts = {name: torch.zeros(4, 2) for name in LEARNERS}
    outputs = Outputs(torch.zeros(4, 6), {**parts, "features": features})
    found = method(outputs, BatchInfo(LABELS, torch.arange(4)))
    found.total.backward()
    assert features.grad is None
    for name in LEARNERS:
        layer = model.head[name][-1]
        assert float(layer.weight.grad.abs().sum()) > 0
        assert layer.bias.grad is None


def test_learners_grow_and_are_weighted_by_their_width() -> None:
    heads = BIER().heads(512)
    assert [head.dim for head in heads] == [96, 160, 256]
    assert [head.weight for head in heads] == [96 / 512, 160 / 512, 0.5]
    assert sum(head.dim for head in BIER().heads(5)) == 5


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="one of 'simple', 'gradient'"):
        BIER(boosting="eta")
    with pytest.raises(BadData, match="three learners"):
        BIER().heads(2)
