"""Triplets drawn by distance: their weights, their classes, and the margin loss on them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.methods.margin import MarginTriplets, Rule, distance_table, inverse_density
from cbml.training import BatchInfo
from tests.oracles import baselines, methods

ROWS = functional.normalize(
    torch.tensor(
        [[1, 0, 0], [0.9, 0.3, 0], [0, 1, 0.2], [0.3, 0.9, 0.4], [0, 0.2, 1], [0.5, 0.1, 0.9]]
    ),
    dim=1,
)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def info(labels: Tensor = LABELS, step: int = 0) -> BatchInfo:
    return BatchInfo(labels, torch.arange(len(labels)), step=step)


def test_worked_weights() -> None:
    weights = inverse_density(distance_table(ROWS), 3, 0.5)[0]
    shares = weights.masked_fill(LABELS[0] == LABELS, -torch.inf).softmax(dim=0)
    expected = [0.0, 0.0, 0.218379, 0.259421, 0.218379, 0.303822]
    assert shares.tolist() == pytest.approx(expected, abs=1e-6)
    plain = methods.inverse_densities(ROWS.tolist(), LABELS.tolist(), 0)
    assert plain == pytest.approx(expected, abs=1e-6)


def draws(rule: Rule, count: int = 4000) -> Tensor:
    loss = MarginTriplets(num_classes=3, rule=rule, seed=3)
    found = [loss.triplets(ROWS, info(step=step)) for step in range(count)]
    return torch.cat([torch.stack(triplets, dim=1) for triplets in found])


@pytest.mark.parametrize("rule", ["classes", "standard", "full"])
def test_triplets_have_the_classes_of_their_rule_and_the_shares_of_their_weights(
    rule: Rule,
) -> None:
    found = draws(rule)
    a, p, n = LABELS[found].unbind(dim=1)
    assert bool((a != n).all())
    assert bool(((a == p) if rule == "classes" else (a != p) & (p != n)).all())
    assert bool((found[:, 0] != found[:, 1]).all())
    own = found[found[:, 0] == 0]
    shares = torch.bincount(own[:, 2], minlength=6) / len(own)
    expected = methods.inverse_densities(ROWS.tolist(), LABELS.tolist(), 0)
    assert shares.tolist() == pytest.approx(expected, abs=0.03)
    if rule != "classes":  # the positive of a known negative
        behind = own[own[:, 2] == 2]
        shares = torch.bincount(behind[:, 1], minlength=6)[4:] / len(behind)
        wanted = 0.5 if rule == "standard" else expected[5] / (expected[4] + expected[5])
        assert float(shares[1]) == pytest.approx(wanted, abs=0.05)


def test_random_triplets_follow_shuffled_labels() -> None:
    found = draws("random", 500)
    a, p, n = LABELS[found].unbind(dim=1)
    assert bool((a == n).any())
    assert bool((a != p).any())
    # Two rows share the shuffled label of the anchor, whichever they are: each as often.
    partners = torch.bincount(found[found[:, 0] == 0][:, 1], minlength=6)[1:] / 500
    assert partners.tolist() == pytest.approx([0.2] * 5, abs=0.08)


@pytest.mark.parametrize("rule", ["standard", "full"])
def test_two_classes_share_nothing(rule: Rule) -> None:
    rows = ROWS[:4].clone().requires_grad_()
    value = MarginTriplets(num_classes=2, rule=rule)(rows, info(LABELS[:4]))
    value.backward()
    assert (float(value.detach()), float(rows.grad.abs().sum())) == (0.0, 0.0)


def test_an_anchor_without_a_partner_is_left_out() -> None:
    labels = torch.tensor([0, 0, 1, 2, 3, 3])
    anchors, _, _ = MarginTriplets(num_classes=4).triplets(ROWS, info(labels))
    assert anchors.tolist() == [0, 1, 4, 5]
    anchors, _, _ = MarginTriplets(num_classes=4).triplets(ROWS, info(torch.zeros_like(labels)))
    assert not len(anchors)


@pytest.mark.parametrize("rule", ["classes", "standard", "full", "random"])
def test_plain_loops_give_the_same_loss_of_the_same_triplets(rule: Rule) -> None:
    loss = MarginTriplets(num_classes=3, rule=rule, beta=1.0, seed=5)
    values = [loss(ROWS, info(step=step)).item() for step in range(4)]
    assert len(set(values)) > 1
    for step, value in enumerate(values):
        triplets = loss.triplets(ROWS, info(step=step))
        listed = list(zip(*(part.tolist() for part in triplets), strict=True))
        expected = baselines.margin(ROWS.tolist(), LABELS.tolist(), listed, 0.2, 1.0)
        assert value == pytest.approx(expected, rel=1e-5)


def test_beta_is_that_of_the_anchor() -> None:
    loss = MarginTriplets(num_classes=3, beta=1.0)
    with torch.no_grad():
        loss.beta[1] = 0.1  # far from every distance
    loss(ROWS, info()).backward()
    anchors, positives, negatives = loss.triplets(ROWS, info())
    expected = [0.0] * 3
    for a, p, n in zip(anchors.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        beta = loss.beta[LABELS[a]].item()
        expected[LABELS[a]] -= (ROWS[a] - ROWS[p]).norm().item() - beta + 0.2 > 0
        expected[LABELS[a]] += beta - (ROWS[a] - ROWS[n]).norm().item() + 0.2 > 0
    assert loss.beta.grad is not None
    scale = [found / plain for found, plain in zip(loss.beta.grad, expected, strict=True) if plain]
    assert scale
    assert [each.item() for each in scale] == pytest.approx([scale[0].item()] * len(scale))
