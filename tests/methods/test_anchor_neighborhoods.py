"""AND: a worked example, plain loops, its limits and its rounds."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.methods import NCE, AnchorNeighborhoods
from cbml.outputs import Outputs
from cbml.training import BatchInfo
from tests.oracles.unlabeled import anchor_neighborhoods, anchors_of, neighborhood_of

MEMORY = torch.tensor([[1, 0], [0.96, 0.28], [0, 1], [-0.6, 0.8], [-1, 0]])
X = torch.tensor([[-0.96, 0.28], [-0.8, 0.6], [0.28, 0.96]])
Y = torch.tensor([4, 3, 2])


def discovered(memory: Tensor, number: int, neighbors: int = 1) -> AnchorNeighborhoods:
    count, dim = memory.shape
    method = AnchorNeighborhoods(num_images=count, embedding_size=dim, neighbors=neighbors)
    method.memory.vectors.copy_(memory)
    method.discover(number)
    return method


def loss_of(method: AnchorNeighborhoods | NCE, x: Tensor, y: Tensor) -> Tensor:
    return method(Outputs(x), BatchInfo(y, y)).total


def test_the_worked_example() -> None:
    first, second = discovered(MEMORY, 1), discovered(MEMORY, 2)
    assert first.anchors.nonzero()[:, 0].tolist() == [4]
    assert second.anchors.nonzero()[:, 0].tolist() == [2, 4]
    assert second.neighborhoods[[4, 2], 0].tolist() == [3, 3]
    assert loss_of(second, X, Y).item() == pytest.approx(0.074176, abs=1e-6)
    none = discovered(MEMORY, 0)
    assert loss_of(none, X, Y).item() == pytest.approx(0.144462, abs=1e-6)
    terms = [loss_of(second, X[i : i + 1], Y[i : i + 1]).item() for i in range(3)]
    assert terms == pytest.approx([0.000926, 0.206380, 0.015222], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_agree(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    memory = functional.normalize(torch.randn(11, 4, generator=generator), dim=1)
    x = functional.normalize(torch.randn(6, 4, generator=generator), dim=1)
    y = torch.tensor([3, 1, 10, 0, 1, 7])
    method = discovered(memory, 3, neighbors=2)
    anchors = anchors_of(memory.tolist(), 0.1, int(11 * 0.75))
    assert sorted(anchors) == method.anchors.nonzero()[:, 0].tolist()
    for i in range(11):
        assert method.neighborhoods[i].tolist() == neighborhood_of(memory.tolist(), i, 2)
    expected = anchor_neighborhoods(x.tolist(), y.tolist(), memory.tolist(), anchors, 2, 0.1)
    assert loss_of(method, x, y).item() == pytest.approx(expected, rel=1e-5)


def test_without_anchors_it_is_the_full_softmax_and_neighbors_never_raise_it() -> None:
    nce = NCE(num_images=5, embedding_size=2, temperature=0.1)
    nce.memory.vectors.copy_(MEMORY)
    rounds = [loss_of(discovered(MEMORY, number), X, Y).item() for number in range(5)]
    assert rounds[0] == pytest.approx(loss_of(nce, X, Y).item(), rel=1e-5)
    assert rounds == sorted(rounds, reverse=True)


def test_the_gradient_is_finite_with_and_without_anchors() -> None:
    x = X.clone().requires_grad_()
    loss_of(discovered(MEMORY, 2), x, Y).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_round_is_a_fifth_of_the_updates() -> None:
    method = AnchorNeighborhoods(num_images=5, embedding_size=2)
    seen = []
    for step in range(1, 11):
        view = SimpleNamespace(step=step, steps=10)
        method.after_step(view, Outputs(X), BatchInfo(Y, Y))  # type: ignore[arg-type]
        seen.append((int(method.round), int(method.anchors.sum())))
    counts = [int(5 * number / 4) for number in range(5)]
    expected = [min(step // 2, 4) for step in range(1, 11)]
    assert seen == [(number, counts[number]) for number in expected]


def test_rounds_may_be_counted_in_updates() -> None:
    method = AnchorNeighborhoods(num_images=5, embedding_size=2, round_steps=3)
    seen = []
    for step in range(1, 15):
        view = SimpleNamespace(step=step, steps=1000)
        method.after_step(view, Outputs(X), BatchInfo(Y, Y))  # type: ignore[arg-type]
        seen.append(int(method.round))
    assert seen == [min(step // 3, 4) for step in range(1, 15)]


@pytest.mark.parametrize(
    ("option", "value"), [("temperature", 0), ("neighbors", 5), ("rounds", 1), ("round_steps", 0)]
)
def test_impossible_options_are_refused_by_name(option: str, value: int) -> None:
    with pytest.raises(ValueError, match=option):
        AnchorNeighborhoods(num_images=5, embedding_size=2, **{option: value})
