"""The margin loss on given pairs, and the draws of pairs."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.methods.margin import (
    Draws,
    Pairs,
    distance_table,
    even_weights,
    inverse_density,
    margin_loss,
    sampled_pairs,
)
from cbml.training import BatchInfo
from tests.oracles import stages

ROWS = functional.normalize(
    torch.tensor(
        [
            [0.424264, 0.565685, 0.707107, 0],
            [0.565685, 0.424264, 0, 0.707107],
            [0, 0.707107, 0.5, 0.5],
            [-0.5, 0.5, 0.632456, 0.316228],
        ]
    ).double(),
    dim=1,
)
POSITIVES = Pairs(torch.tensor([0, 1, 2, 3]), torch.tensor([1, 0, 3, 2]))
NEGATIVES = Pairs(torch.tensor([0, 1, 2, 3]), torch.tensor([2, 2, 0, 0]))


def info(labels: list[int], step: int = 0, indices: Tensor | None = None) -> BatchInfo:
    known = torch.tensor(labels)
    return BatchInfo(known, torch.arange(len(known)) if indices is None else indices, step=step)


def listed(pairs: Pairs) -> list[tuple[int, int]]:
    return list(zip(pairs.anchors.tolist(), pairs.others.tolist(), strict=True))


def test_worked_example() -> None:
    beta = torch.full((4,), 1.2).double()
    found = float(margin_loss(ROWS, POSITIVES, NEGATIVES, beta=beta, margin=0.2))
    assert found == pytest.approx(0.403528, abs=1e-6)
    terms = stages.margin_terms(ROWS.tolist(), listed(POSITIVES), listed(NEGATIVES), [1.2] * 4, 0.2)
    expected = [0.019804, 0.019804, 0, 0, 0.697936, 0.567598, 0.697936, 0.418088]
    assert terms == pytest.approx(expected, abs=1e-6)


def test_worked_example_of_a_triplet_of_three_classes() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]).double()
    pairs = [Pairs(torch.tensor([0]), torch.tensor([other])) for other in (1, 2)]
    assert distance_table(rows)[0].tolist()[1:] == pytest.approx([0.894427, 1.414214], abs=1e-6)
    found = margin_loss(rows, *pairs, beta=torch.ones(3).double(), margin=0.2)
    assert float(found) == pytest.approx(0.094427, abs=1e-6)


def test_plain_loops_give_the_same_for_pairs_that_repeat() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = functional.normalize(torch.randn(7, 3, generator=generator).double(), dim=1)
    pairs = [Pairs(*torch.randint(0, 7, (2, 12), generator=generator)) for _ in range(2)]
    beta = torch.rand(7, generator=generator).double() + 0.5
    found = float(margin_loss(rows, *pairs, beta=beta, margin=0.3))
    lists = [listed(each) for each in pairs]
    assert found == pytest.approx(
        stages.margin(rows.tolist(), *lists, beta.tolist(), 0.3), rel=1e-9
    )


def test_an_image_against_itself_has_no_gradient_and_no_pairs_give_zero() -> None:
    rows, beta = ROWS.clone().requires_grad_(), torch.full((4,), 1.2).double()
    itself = Pairs(torch.tensor([1]), torch.tensor([1]))
    nobody = Pairs(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64))
    loss = margin_loss(rows, nobody, itself, beta=beta, margin=0.2)
    assert float(loss.detach()) == pytest.approx(1.4 - 1e-4)
    loss.backward()
    assert not rows.grad.any()
    loss = margin_loss(rows, nobody, nobody, beta=beta, margin=0.2)
    loss.backward()
    assert float(loss.detach()) == 0.0


def test_the_weight_of_a_distance_is_one_over_its_density() -> None:
    table = torch.tensor([[0.1, 0.5, 0.9, 1.3, 1.9]]).double()
    expected = [stages.log_inverse_density(d, 16, 0.5) for d in table[0].tolist()]
    assert inverse_density(table, 16, 0.5)[0].tolist() == pytest.approx(expected)


def test_draws_follow_their_weights_and_the_images_alone() -> None:
    chances = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0])
    weights = chances.log().expand(5, 5)
    counts = torch.zeros(5, 5)
    order = torch.tensor([3, 0, 4, 1, 2])
    for step in range(4000):
        drawn = Draws(info([0] * 5, step), 7).columns(weights)[:, 0]
        counts[torch.arange(5), drawn] += 1
        if step < 20:
            moved = Draws(info([0] * 5, step, order), 7)
            assert torch.equal(order[moved.columns(weights[:, order])[:, 0]], drawn[order])
    torch.testing.assert_close(counts / 4000, chances.expand(5, 5), atol=0.03, rtol=0)
    both = Draws(info([0] * 5), 7).columns(even_weights(torch.ones(5, 5, dtype=torch.bool)), 5)
    assert torch.equal(both.sort(dim=1).values, torch.arange(5).expand(5, 5)), "none comes twice"


def test_one_positive_and_one_negative_of_each_anchor_are_drawn() -> None:
    rows = functional.normalize(
        torch.randn(6, 4, generator=torch.Generator().manual_seed(2)), dim=1
    )
    labels = [0, 0, 0, 1, 1, 2]
    counts = torch.zeros(6, 6)
    for step in range(1000):
        batch = info(labels, step)
        positives, negatives = sampled_pairs(rows, batch, Draws(batch, 3), near=0.5)
        assert positives.anchors.tolist() == negatives.anchors.tolist() == [0, 1, 2, 3, 4]
        for pairs, same in ((positives, True), (negatives, False)):
            assert all((labels[i] == labels[j]) is same for i, j in listed(pairs))
            assert not any(i == j for i, j in listed(pairs))
            for i, j in listed(pairs):
                counts[i, j] += 1 / 1000
    assert counts[0, 1:3].tolist() == pytest.approx([0.5, 0.5], abs=0.06)
    table = distance_table(rows)
    powers = [math.exp(stages.log_inverse_density(float(table[0, j]), 4, 0.5)) for j in (3, 4, 5)]
    expected = [power / sum(powers) for power in powers]
    assert counts[0, 3:].tolist() == pytest.approx(expected, abs=0.06)
