"""The constraint alone and beside other losses, and the table of all losses."""

import random

import pytest
import torch
from torch import nn

import cbml
from cbml import LOSSES, CBMLLoss, MetricVariance
from cbml.losses import WithVariance
from tests.losses.cases import KINDS, make_batch
from tests.oracles import contrastive_bayesian as literal

# Batches without positives are among the cases.
pytestmark = pytest.mark.filterwarnings("ignore:no two images of this batch share a label")


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


def test_the_constraint_leaves_the_rate_of_the_proxies_alone() -> None:
    anchor = LOSSES["proxy_anchor"](num_classes=3, embedding_size=4)
    assert WithVariance(anchor).learning_rate_factor == anchor.learning_rate_factor == 100.0
    assert WithVariance(CBMLLoss()).learning_rate_factor == 1.0


def test_terms_show_the_variance_even_where_it_has_no_weight() -> None:
    rows, labels = torch.randn(30, 8), torch.arange(30) % 5
    terms = CBMLLoss(variance_weight=0.0).terms(rows, labels)
    assert terms.variance.item() > 0
    torch.testing.assert_close(terms.total, terms.positive + terms.negative)
    weighted = CBMLLoss(variance_weight=3.0).terms(rows, labels)
    torch.testing.assert_close(weighted.total, terms.total + 3 * terms.variance)


def test_losses_is_a_mapping_of_modules() -> None:
    assert "cbm" not in cbml.LOSSES
    assert len(cbml.LOSSES) == len(set(cbml.LOSSES))
    for name, loss in LOSSES.items():
        assert issubclass(loss, nn.Module), name
        with pytest.raises(TypeError):
            loss(misspelled_option=1)


def test_variants_are_the_presets_under_a_name() -> None:
    rows, labels = torch.randn(30, 8), torch.arange(30) % 5
    for name, preset in [
        ("cbml_sqrt", CBMLLoss.paper("sop", averaging="sqrt")),
        ("cbml_const", CBMLLoss.paper("sop", averaging="const")),
        ("cbml_authors", CBMLLoss.authors("sop")),
    ]:
        variant = LOSSES[name](dataset="sop")
        assert torch.equal(variant(rows, labels), preset(rows, labels))
        assert torch.equal(variant.terms(rows, labels).total, preset(rows, labels))
        assert not hasattr(variant, "paper"), "a preset of a preset could only mislead"
    quarter = LOSSES["cbml_authors"](averaging="const")
    assert quarter.loss.delta == 0.25


def test_an_option_can_be_changed_between_two_steps() -> None:
    rows, labels = torch.randn(30, 8), torch.arange(30) % 5
    loss = CBMLLoss(variance_weight=0.0)
    before = loss(rows, labels)
    loss.variance_weight = 3.0
    torch.testing.assert_close(loss(rows, labels), CBMLLoss(variance_weight=3.0)(rows, labels))
    assert loss(rows, labels) > before
