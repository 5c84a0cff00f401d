"""The constraint alone and beside other losses, and the table of all losses."""

import inspect
import random

import pytest
import torch
from torch import nn

import cbml
from cbml import LOSSES, CBMLLoss, MetricVariance
from cbml.losses import WithVariance
from tests.losses.cases import KINDS, make_batch
from tests.oracles import contrastive_bayesian as literal


def test_the_constraint_alone_equals_the_oracle() -> None:
    chance = random.Random(2)
    for kind in KINDS:
        for _ in range(40):
            rows, labels = make_batch(kind, chance)
            gamma, reduction = chance.choice([0.0, 0.2, 1.5]), chance.choice(["mean", "sum"])
            loss = MetricVariance(target_mix=gamma, reduction=reduction)  # type: ignore[arg-type]
            oracle = literal.Oracle(
                lambda s: 0.0, lambda s: 0.0, epsilon=None, gamma=gamma, variance=reduction
            )
            expected = literal.terms(oracle, rows.tolist(), labels.tolist())[2]
            assert loss(rows, labels).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_cbml_is_its_bayesian_part_and_the_constraint() -> None:
    rows, labels = torch.randn(30, 8, dtype=torch.float64, requires_grad=True), torch.arange(30) % 5
    whole = CBMLLoss(variance_weight=2.0)
    parts = WithVariance(CBMLLoss(variance_weight=0.0), variance_weight=2.0)
    torch.testing.assert_close(whole(rows, labels), parts(rows, labels))
    (one,) = torch.autograd.grad(whole(rows, labels), rows)
    (other,) = torch.autograd.grad(parts(rows, labels), rows)
    torch.testing.assert_close(one, other)


def test_the_constraint_takes_along_the_parameters_of_the_loss() -> None:
    proxies = LOSSES["proxy_nca"](num_classes=4, embedding_size=6)
    loss = WithVariance(proxies)
    assert {id(p) for p in loss.parameters()} == {id(p) for p in proxies.parameters()} != set()
    loss(torch.randn(8, 6), torch.arange(8) % 4).backward()
    assert all(parameter.grad is not None for parameter in loss.parameters())


def test_terms_show_the_variance_even_where_it_has_no_weight() -> None:
    rows, labels = torch.randn(30, 8), torch.arange(30) % 5
    terms = CBMLLoss(variance_weight=0.0).terms(rows, labels)
    assert terms.variance.item() > 0
    torch.testing.assert_close(terms.total, terms.positive + terms.negative)
    weighted = CBMLLoss(variance_weight=3.0).terms(rows, labels)
    torch.testing.assert_close(weighted.total, terms.total + 3 * terms.variance)


def test_losses_is_a_plain_dict_of_modules() -> None:
    assert type(cbml.LOSSES) is dict
    for name, loss in LOSSES.items():
        assert issubclass(loss, nn.Module), name
        with pytest.raises(TypeError):
            loss(misspelt_option=1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cbml_sqrt", {"averaging": "sqrt"}),
        ("cbml_const", {"averaging": "const"}),
        ("cbml_authors", {"variance_reduction": "sum", "skip_easy_anchors": True}),
    ],
)
def test_variants_are_cbml_with_another_default(name: str, options: dict[str, object]) -> None:
    rows, labels = torch.randn(30, 8), torch.arange(30) % 5
    torch.testing.assert_close(LOSSES[name]()(rows, labels), CBMLLoss(**options)(rows, labels))  # type: ignore[arg-type]
    assert "mining_margin" in inspect.signature(LOSSES[name]).parameters
    assert LOSSES[name](variance_weight=0.5).variance_weight == 0.5
