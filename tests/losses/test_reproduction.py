"""Where the paper and the authors' program differ, row by row, and two identities."""

import pytest
import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices
from torch import Tensor

from cbml import CBMLLoss, LinearRatio, MetricVariance
from tests.oracles import contrastive_bayesian as literal

# Batches without positives are among the cases.
pytestmark = pytest.mark.filterwarnings("ignore:no two images of this batch share a label")

CUB = literal.linear(0.5, 0.5, 1.0, 0.01)


def batch(size: int = 40, classes: int = 8, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    labels = torch.arange(size) % classes
    centers = torch.randn(classes, 16, generator=generator, dtype=torch.float64)
    noises = torch.randn(size, 16, generator=generator, dtype=torch.float64)
    return centers[labels] + noise * noises, labels


def by_oracle(oracle: literal.Oracle, rows: Tensor, labels: Tensor) -> tuple[float, ...]:
    return literal.terms(oracle, rows.tolist(), labels.tolist())


def test_l1_the_program_sums_the_variance_over_the_negatives() -> None:
    rows, labels = batch()  # 5 per class: every anchor has 35 negatives
    mean = CBMLLoss.paper("cub", mining_margin=None).terms(rows, labels).variance
    total = CBMLLoss.authors("cub", mining_margin=None).terms(rows, labels).variance
    torch.testing.assert_close(total, 35 * mean)
    assert CBMLLoss.paper("cub").variance_reduction == "mean"
    assert CBMLLoss.authors("cub").variance_reduction == "sum"


@pytest.mark.parametrize(
    ("dataset", "weight"), [("cub", 1.0), ("cars", 1.0), ("sop", 0.001), ("inshop", 0.001)]
)
@pytest.mark.parametrize("mode", ["paper", "authors"])
def test_l1_weights_and_l6_parameters_of_each_set(mode: str, dataset: str, weight: float) -> None:
    loss = getattr(CBMLLoss, mode)(dataset)
    fine = LinearRatio(
        positive_center=0.5, positive_scale=0.5, negative_center=1.0, negative_scale=0.01
    )
    products = LinearRatio(
        positive_center=0.5, positive_scale=0.25, negative_center=0.5, negative_scale=0.05
    )
    assert loss.ratio == (fine if dataset in {"cub", "cars"} else products)
    assert loss.variance_weight == weight


def test_l2_an_empty_hard_set_drops_the_anchor_in_the_program_only() -> None:
    rows, labels = batch(noise=0.05)  # so well separated that no pair is hard
    paper = CBMLLoss.paper("cub").terms(rows, labels)
    authors = CBMLLoss.authors("cub").terms(rows, labels)
    assert float(paper.positive) == float(paper.negative) == 0.0
    assert float(paper.variance) > 0.0
    assert float(authors.total) == float(authors.variance) == 0.0


def test_l2_the_divisor_stays_the_batch_size() -> None:
    rows, labels = batch(size=6, classes=2)
    lone = torch.cat([rows, torch.randn(1, 16, dtype=torch.float64)])
    lone_labels = torch.cat([labels, torch.tensor([99])])
    loss = CBMLLoss.authors("cub", mining_margin=3.0)  # every pair is hard
    oracle = literal.Oracle(*CUB, epsilon=3.0, variance="sum", skip=True)
    found = loss(lone, lone_labels).item()
    assert found == pytest.approx(by_oracle(oracle, lone, lone_labels)[3], rel=1e-10)


def test_l3_self_is_masked_by_index_and_true_duplicates_count() -> None:
    rows, labels = batch(size=8, classes=2)
    rows[2] = rows[0]  # the same image twice in its class
    loss = CBMLLoss.paper("cub", mining_margin=None)
    expected = by_oracle(literal.Oracle(*CUB, epsilon=None), rows, labels)
    assert loss(rows, labels).item() == pytest.approx(expected[3], rel=1e-10)
    half = CBMLLoss.paper("cub", mining_margin=None)(rows.half(), labels)
    assert half.item() == pytest.approx(expected[3], rel=1e-2)


def test_l4_to_l7_defaults() -> None:
    for loss in [CBMLLoss(), CBMLLoss.paper("cub"), CBMLLoss.authors("sop")]:
        assert (loss.mining_margin, loss.delta, loss.target_mix) == (0.1, 1.0, 0.2)


def test_l5_the_derived_delta() -> None:
    rows, labels = batch(size=7, classes=2)  # 4 and 3 per class
    loss = CBMLLoss(delta="derived", mining_margin=None)
    oracle = literal.Oracle(*CUB, delta="derived", epsilon=None)
    assert loss(rows, labels).item() == pytest.approx(by_oracle(oracle, rows, labels)[3])


def test_l8_the_gradient_flows_through_the_target() -> None:
    rows, labels = batch(size=6, classes=2)
    rows.requires_grad_()
    MetricVariance(target_mix=1.0)(rows, labels).backward()
    with_target = rows.grad
    assert with_target is not None
    unit = torch.nn.functional.normalize(rows)
    similarity, same = unit @ unit.T, labels[:, None] == labels[None, :]
    fixed = torch.stack(
        [
            (similarity[i][~same[i]] - (similarity[i][same[i]].sum() - 1.0).detach() / 2)
            .square()
            .mean()
            for i in range(6)
        ]
    ).mean()
    (without_target,) = torch.autograd.grad(fixed, rows)
    assert not torch.allclose(with_target, without_target, atol=1e-3)
    assert torch.autograd.gradcheck(lambda x: MetricVariance(target_mix=1.0)(x, labels), rows)


def test_l9_const_weighs_one_in_the_paper_and_a_quarter_in_the_program() -> None:
    rows, labels = batch(size=12, classes=3)
    for loss, weight in [(CBMLLoss.paper, 1.0), (CBMLLoss.authors, 0.25)]:
        made = loss("sop", averaging="const", mining_margin=3.0)
        oracle = literal.Oracle(
            *literal.linear(0.5, 0.25, 0.5, 0.05),
            averaging="const",
            delta=weight,
            epsilon=3.0,
            lam=0.001,
            variance=made.variance_reduction,
        )
        expected = by_oracle(oracle, rows, labels)
        assert made(rows, labels).item() == pytest.approx(expected[3], rel=1e-10)
        assert made.terms(rows, labels).positive.item() > 1.0, "the 1 of 1 + Σ counts"


def test_l10_large_exponents_do_not_overflow() -> None:
    labels = torch.tensor([0, 0, 1])
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 1e-3]], requires_grad=True)
    ratio = LinearRatio(positive_scale=1e-3, negative_scale=1e-3, negative_center=0.0)
    loss = CBMLLoss(ratio=ratio, mining_margin=None)(rows, labels)  # exp(1500) in a naive form
    loss.backward()
    assert rows.grad is not None
    assert 1000 < loss.item() < 3000
    assert bool(rows.grad.isfinite().all())


def test_l11_mining_off_equals_a_margin_that_keeps_everything() -> None:
    rows, labels = batch()
    off = CBMLLoss.paper("cub", mining_margin=None)(rows, labels)
    torch.testing.assert_close(off, CBMLLoss.paper("cub", mining_margin=2.5)(rows, labels))
    assert not torch.allclose(off, CBMLLoss.paper("cub")(rows, labels))


@pytest.mark.parametrize("mode", ["paper", "authors"])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_l12_no_valid_anchor_gives_a_zero_with_a_graph(mode: str, size: int) -> None:
    rows = torch.randn(size, 4, requires_grad=True)
    loss = getattr(CBMLLoss, mode)("cub")(rows, torch.arange(size))
    assert loss.item() == 0.0
    assert loss.device == rows.device
    loss.backward()
    assert rows.grad is not None
    assert torch.equal(rows.grad, torch.zeros(size, 4))


def test_identity_of_the_variance_about_the_target() -> None:
    """mean_n (s_in - ξ_i)² = Var_N(i) + γ² (μ_P - μ_N)²."""
    rows, labels = batch()
    unit = torch.nn.functional.normalize(rows)
    similarity, same = unit @ unit.T, labels[:, None] == labels[None, :]
    for gamma in [0.0, 0.2, 1.0]:
        expected = 0.0
        for i in range(len(rows)):
            negatives = similarity[i][~same[i]]
            positives = torch.cat(
                [similarity[i, :i][same[i, :i]], similarity[i, i + 1 :][same[i, i + 1 :]]]
            )
            gap = positives.mean() - negatives.mean()
            expected += float(negatives.var(correction=0) + gamma**2 * gap**2) / len(rows)
        found = MetricVariance(target_mix=gamma)(rows, labels).item()
        assert found == pytest.approx(expected, rel=1e-10)


def test_identity_with_the_multi_similarity_loss() -> None:
    """With CUB parameters L_P is twice the multi-similarity positive term, α = 2, λ = 0.5."""
    rows, labels = batch()
    found = CBMLLoss.paper("cub", mining_margin=None).terms(rows, labels).positive.item()
    anchors, positives, _, _ = get_all_pairs_indices(labels)
    nothing = torch.empty(0, dtype=torch.int64)
    peer = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(
        rows, labels, (anchors, positives, nothing, nothing)
    )
    assert found == pytest.approx(2 * peer.item(), rel=1e-10)
