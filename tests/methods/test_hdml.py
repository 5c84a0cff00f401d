"""HDML: its worked examples, plain loops, its limits, and who learns from which loss."""

import math

import pytest
import torch
from torch import Tensor

from cbml.errors import BadData
from cbml.methods import HDML
from cbml.methods.hdml import pairs_of, pulled
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, StepLoss
from tests.oracles import methods

PLANE = [[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]


def hardness(average: float) -> Tensor:
    return torch.tensor(-90.0 / average, dtype=torch.float64).exp()


def double(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("average", "expected"),
    [(1e6, (5.999730, 7.999640)), (90, (4.103638, 5.471518)), (9, (3.000136, 4.000182))],
)
def test_worked_example_of_the_pull(average: float, expected: tuple[float, float]) -> None:
    anchors, positives = double([PLANE[0], [90.0, 90.0]]), double(PLANE[1:])
    found = pulled(anchors, positives, hardness(average))
    assert found[0, 1].tolist() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(found.diagonal().T, positives)


def test_worked_example_of_the_loss() -> None:
    anchors, positives = double([[1, 0], [0, 1]]), double([[0.8, 0.6], [0.6, 0.8]])
    found = pulled(anchors, positives, hardness(90))
    assert found[0, 1].tolist() == pytest.approx([0.674058, 0.651885], abs=1e-6)
    loss = HDML(norm_weight=0.0).n_pair(anchors, found)
    assert float(loss) == pytest.approx(0.632157, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    anchors, positives = torch.randn(2, 5, 3, generator=generator).double()
    found = pulled(anchors, positives, hardness(40.0))
    expected = [
        [methods.hdml_pulled(a, p, n, 40.0) for n in positives.tolist()]
        for a, p in zip(anchors.tolist(), positives.tolist(), strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    loss = HDML(norm_weight=0.3).n_pair(anchors, found)
    assert float(loss) == pytest.approx(methods.n_pair(anchors.tolist(), expected, 0.3), rel=1e-9)


def test_the_limits_of_the_pull() -> None:
    anchors, positives = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1)).double()
    same = positives.expand(6, 6, 4)
    torch.testing.assert_close(pulled(anchors, positives, hardness(1e30)), same)
    closest = pulled(anchors, positives, hardness(1e-3))
    own = (anchors - positives).norm(dim=1)
    away = (closest - anchors[:, None]).norm(dim=2)
    assert bool((away <= own[:, None] + 1e-9).all())
    far = (anchors[:, None] - positives[None]).norm(dim=2) > own[:, None]
    torch.testing.assert_close(away[far], own[:, None].expand(6, 6)[far])


def test_equal_embeddings_have_a_finite_gradient() -> None:
    rows = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    pulled(rows, rows, hardness(90)).sum().backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())


def prepared(**options: float) -> tuple[Embedder, HDML, Outputs, BatchInfo]:
    method = HDML(num_classes=4, hidden=8, **options)  # type: ignore[arg-type]
    model = Embedder("conv4", dim=8, seed=1)
    method.attach(model)
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(8, 64, generator=generator, requires_grad=True)
    raw = model.head(features)
    outputs = Outputs(torch.nn.functional.normalize(raw), {"raw": raw, "features": features})
    return model, method, outputs, BatchInfo(torch.arange(8) // 2, torch.arange(8))


def touched(term: Tensor, model: Embedder, method: HDML, features: Tensor) -> set[str]:
    """Who gets a gradient from a term."""
    groups = {
        "features": [features],
        "layer": [*model.head.parameters()],
        "generator": [*method.generator.parameters()],
        "classifier": [*method.classifier.parameters()],
    }
    found = {
        name: torch.autograd.grad(term, those, retain_graph=True, allow_unused=True)
        for name, those in groups.items()
    }
    return {name for name, those in found.items() if any(each is not None for each in those)}


def test_each_loss_trains_its_own_network() -> None:
    model, method, outputs, batch = prepared()
    found: StepLoss = method(outputs, batch)
    features = outputs.parts["features"]
    assert {name: touched(term, model, method, features) for name, term in found.terms.items()} == {
        "real": {"features", "layer"},
        "synthetic": {"features", "layer"},
        "reconstruction": {"generator"},
        "classes": {"generator"},
        "classifier": {"classifier"},
    }


@pytest.mark.parametrize(
    ("average", "expected"), [(1e6, 0.990050), (1e4, 0.367879), (1e3, 0.000045), (0.0, 0.0)]
)
def test_the_generator_s_loss_weighs_the_real_pairs(average: float, expected: float) -> None:
    _, method, outputs, batch = prepared(balance=1e4)
    method.averages[1] = average
    method.class_weight, method.class_share = 0.0, 1.0  # no loss of the generator
    found: StepLoss = method(outputs, batch)
    terms = {name: float(term.detach()) for name, term in found.terms.items()}
    assert float(method.sums[0]) / terms["real"] == pytest.approx(expected, abs=1e-6)
    metric = expected * terms["real"] + (1.0 - expected) * terms["synthetic"]
    assert float(found.total.detach()) == pytest.approx(metric + terms["classifier"], rel=1e-5)


def test_averages_are_those_of_the_last_whole_window() -> None:
    _, method, outputs, batch = prepared(window=2)
    first: StepLoss = method(outputs, batch)
    assert method.averages.tolist() == [1e6, 1e6]
    weight = math.exp(-5e3 / 1e6)
    method(outputs, batch)
    generator = float((first.terms["reconstruction"] + first.terms["classes"]).detach())
    real = weight * float(first.terms["real"].detach())
    assert method.averages.tolist() == pytest.approx([real, generator], rel=1e-5)
    assert (method.sums.tolist(), int(method.steps)) == ([0.0, 0.0], 0)


class Rebuilt(torch.nn.Sequential):
    """A generator whose answer is known."""

    def forward(self, rows: Tensor) -> Tensor:
        del rows
        return torch.tensor([[1.0, 1.0], [2.0, 4.0]])


def test_worked_example_of_the_reconstruction() -> None:
    model, method, _, _ = prepared()
    model.head, method.generator = torch.nn.Linear(2, 8), Rebuilt()
    method.classifier[0] = torch.nn.Linear(2, 4)
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    parts = {"raw": torch.ones(2, 8), "features": features}
    found: StepLoss = method(
        Outputs(torch.ones(2, 8), parts), BatchInfo(torch.tensor([1, 1]), torch.arange(2))
    )
    assert float(found.terms["reconstruction"]) == pytest.approx(1.0, abs=1e-6)


def test_pairs_are_of_one_class_and_use_every_image() -> None:
    labels = torch.tensor([2, 0, 0, 2, 1, 0, 0, 2])
    rounds = pairs_of(BatchInfo(labels, torch.arange(8) + 100))
    assert [len(anchors) for anchors, _ in rounds] == [2, 1]
    used = torch.cat([torch.cat(pair) for pair in rounds])
    assert len(used.unique()) == len(used) == 6, "a third image of a class has no partner"
    for anchors, positives in rounds:
        assert bool((labels[anchors] == labels[positives]).all())
        assert len(labels[anchors].unique()) == len(anchors)


def test_what_cannot_be_meant_is_refused() -> None:
    _, method, outputs, _ = prepared()
    with pytest.raises(BadData, match="samples_per_class=2"):
        method(outputs, BatchInfo(torch.arange(8), torch.arange(8)))
    for options in ({"class_share": 1.5}, {"window": 0}, {"pull": -1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            HDML(**options)
