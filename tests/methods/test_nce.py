"""NCE: a worked example, plain loops, and its limits."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.methods import NCE
from cbml.outputs import Outputs
from cbml.training import BatchInfo
from tests.oracles.unlabeled import memory_nce, memory_softmax, memory_write

MEMORY = torch.tensor([[1, 0], [0.6, 0.8], [0, 1], [-0.8, 0.6], [0.8, -0.6]])
X = torch.tensor([[0.8, 0.6], [0, 1]])
Y = [0, 2]
DRAWS = torch.tensor([[1, 2, 3], [0, 4, 2]])


def nce(memory: Tensor, **options: float) -> NCE:
    method = NCE(num_images=len(memory), embedding_size=memory.shape[1], **options)
    method.memory.vectors.copy_(memory)
    return method


def loss_of(method: NCE, x: Tensor, y: list[int], step: int = 0) -> Tensor:
    indices = torch.tensor(y)
    return method(Outputs(x), BatchInfo(indices, indices, step=step)).total


def write(method: NCE, x: Tensor, y: list[int]) -> None:
    indices = torch.tensor(y)
    method.after_step(None, Outputs(x), BatchInfo(indices, indices))  # type: ignore[arg-type]


def test_the_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    method = nce(MEMORY, temperature=0.5, negatives=3)
    monkeypatch.setattr(method, "draw", lambda rows, step: DRAWS)
    x = X.clone().requires_grad_()
    loss = loss_of(method, x, Y)
    assert loss.item() == pytest.approx(1.759449, abs=1e-6)
    assert method.normalizer.item() == pytest.approx(19.840390, abs=1e-5)
    loss.backward()
    expected = torch.tensor([[-0.524248, 0.536964], [0.097236, -0.248835]])
    torch.testing.assert_close(x.grad, expected, atol=1e-6, rtol=0)
    write(method, X, Y)
    torch.testing.assert_close(method.memory.vectors[0], torch.tensor([0.948683, 0.316228]))
    torch.testing.assert_close(method.memory.vectors[2], torch.tensor([0.0, 1.0]))
    assert torch.equal(method.memory.vectors[[1, 3, 4]], MEMORY[[1, 3, 4]])
    full = loss_of(nce(MEMORY, temperature=0.5, negatives=0), X, Y)
    assert full.item() == pytest.approx(1.044223, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_agree(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    memory = functional.normalize(torch.randn(9, 4, generator=generator), dim=1)
    x = functional.normalize(torch.randn(5, 4, generator=generator), dim=1)
    y = [3, 1, 8, 0, 1]
    lists = (x.tolist(), y, memory.tolist())
    method = nce(memory, negatives=6, seed=seed, memory_momentum=0.3)
    z, expected = memory_nce(*lists, method.draw(5, 7).tolist(), 0.1)
    assert loss_of(method, x, y, step=7).item() == pytest.approx(expected, rel=1e-5)
    assert method.normalizer.item() == pytest.approx(z, rel=1e-5)
    full = loss_of(nce(memory, negatives=0), x, y).item()
    assert full == pytest.approx(memory_softmax(*lists, 0.1), rel=1e-5)
    write(method, x, y)  # image 1 comes twice: its last row stays
    written = torch.tensor(memory_write(memory.tolist(), x.tolist(), y, 0.3))
    torch.testing.assert_close(method.memory.vectors, written)


def test_the_normalizer_is_that_of_the_first_batch() -> None:
    method = nce(MEMORY, negatives=3)
    loss_of(method, X, Y)
    first = method.normalizer.clone()
    loss_of(method, X.flip(0), Y, step=1)
    assert torch.equal(method.normalizer, first)


def test_limits() -> None:
    alike = torch.ones(5, 4) / 2
    assert loss_of(nce(alike), alike[:2], Y).item() == pytest.approx(math.log(5))
    still, new = nce(MEMORY, memory_momentum=1.0), nce(MEMORY, memory_momentum=0.0)
    write(still, X, Y)
    torch.testing.assert_close(still.memory.vectors, MEMORY)
    write(new, X, Y)
    torch.testing.assert_close(new.memory.vectors[Y], X)


def test_the_memory_starts_about_as_long_as_one_and_follows_its_seed() -> None:
    first, again, other = (
        NCE(num_images=400, embedding_size=64, seed=seed).memory.vectors for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.abs().max().item() <= math.sqrt(3 / 64)
    assert first.norm(dim=1).mean().item() == pytest.approx(1, abs=0.02)


def test_few_images_take_the_full_softmax_and_many_take_draws() -> None:
    assert NCE(num_images=20_000, embedding_size=1).negatives == 0
    many = NCE(num_images=20_001, embedding_size=1)
    assert many.negatives == 4096
    assert torch.equal(many.draw(2, 5), many.draw(2, 5))
    assert not torch.equal(many.draw(2, 5), many.draw(2, 6))


@pytest.mark.parametrize(
    ("option", "value"), [("temperature", 0.0), ("negatives", -1), ("memory_momentum", 1.5)]
)
def test_impossible_options_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        nce(MEMORY, **{option: value})
