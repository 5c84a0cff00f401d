"""CBMLLoss against the literal equations: every option, every corner, value and gradient."""

import math
import random

import pytest
import torch
from torch import Tensor

from cbml import CBMLLoss, LinearRatio, MetricVariance, QuadraticRatio
from cbml.losses import PRODUCTS, terms
from tests.losses import autograd
from tests.losses.cases import KINDS, distance_from_an_edge, make_batch, make_setting
from tests.oracles import contrastive_bayesian as literal

STEP = 1e-6
# Batches without positives are among the cases.
pytestmark = pytest.mark.filterwarnings("ignore:no two images of this batch share a label")


def values(loss: CBMLLoss, rows: Tensor, labels: Tensor) -> list[float]:
    terms = loss.terms(rows, labels)
    return [float(t) for t in (terms.positive, terms.negative, terms.variance, terms.total)]


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_generated_cases_equal_the_oracle(kind: str) -> None:
    chance = random.Random(f"cases {kind}")
    compared = 0
    for _ in range(1000):
        rows, labels = make_batch(kind, chance)
        setting = make_setting(chance)
        if distance_from_an_edge(rows, labels, setting.oracle.epsilon) < 1e-12:
            continue
        expected = literal.terms(setting.oracle, rows.tolist(), labels.tolist())
        found = values(setting.loss, rows, labels)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), setting.loss
        compared += 1
    assert compared >= (990 if kind not in {"duplicates", "opposite"} else 500)


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_gradients_equal_autograd(kind: str) -> None:
    """Within 1e-6 of what autograd makes of an independent form, entry by entry, in float64."""
    chance = random.Random(f"cases {kind}")
    compared = 0
    for _ in range(1000):
        rows, labels = make_batch(kind, chance)
        setting = make_setting(chance)
        if distance_from_an_edge(rows, labels, setting.oracle.epsilon) < 1e-12:
            continue
        rows = torch.nn.functional.normalize(rows)
        ours, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
        setting.loss(ours, labels).backward()
        autograd.total(setting.loss, theirs, labels).backward()
        assert ours.grad is not None
        assert theirs.grad is not None
        scale = 1.0 + float(theirs.grad.abs().max())
        assert float((ours.grad - theirs.grad).abs().max()) < 1e-6 * scale, setting.loss
        compared += 1
    assert compared >= (990 if kind not in {"duplicates", "opposite"} else 500)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_differences_of_the_oracle(kind: str) -> None:
    """Central differences of the literal loss, in float64, along random directions."""
    chance = random.Random(f"gradients {kind}")
    for _ in range(20):
        rows, labels = make_batch(kind, chance)
        if kind == "huge and tiny lengths":
            rows = torch.nn.functional.normalize(rows) * 3.0
        setting = make_setting(chance)
        if distance_from_an_edge(rows, labels, setting.oracle.epsilon) < 1e-4:
            continue  # a step across the edge of a hard set is not a derivative
        rows.requires_grad_()
        setting.loss(rows, labels).backward()
        assert rows.grad is not None
        direction = torch.randn(rows.shape, dtype=torch.float64)

        def shifted(
            sign: float,
            rows: Tensor = rows,
            direction: Tensor = direction,
            labels: Tensor = labels,
            oracle: literal.Oracle = setting.oracle,
        ) -> float:
            moved = (rows.detach() + sign * STEP * direction).tolist()
            return literal.terms(oracle, moved, labels.tolist())[3]

        expected = (shifted(1.0) - shifted(-1.0)) / (2 * STEP)
        found = float((rows.grad * direction).sum())
        # A difference of two large values keeps only their leading digits.
        noise = 1e-6 + 1e-8 * abs(shifted(0.0))
        assert found == pytest.approx(expected, rel=1e-5, abs=noise)


@pytest.mark.parametrize("averaging", ["log", "sqrt", "const"])
@pytest.mark.parametrize("mining_margin", [None, 0.1])
@pytest.mark.parametrize("mode", ["paper", "authors"])
def test_gradcheck_in_both_modes(mode: str, averaging: str, mining_margin: float | None) -> None:
    make = CBMLLoss.paper if mode == "paper" else CBMLLoss.authors
    loss = make("sop", averaging=averaging, mining_margin=mining_margin)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(12, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    refs = torch.randn(9, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    labels, ref_labels = torch.arange(12) % 4, torch.arange(9) % 3
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), rows)
    assert torch.autograd.gradcheck(lambda x, y: loss(x, labels, None, y, ref_labels), (rows, refs))


def test_gradcheck_of_the_quadratic_exponent_and_of_the_constraint() -> None:
    rows = torch.randn(12, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(12) % 4
    ratio = QuadraticRatio(positive_mean=0.5, positive_std=0.3, negative_mean=0.1, negative_std=0.2)
    for loss in [
        CBMLLoss(ratio=ratio),
        CBMLLoss(ratio=ratio, delta="derived", mining_margin=None, averaging="sqrt"),
        MetricVariance(),
        MetricVariance(target_mix=0.7, reduction="sum"),
    ]:
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, labels), rows)


def test_references_and_listed_pairs_equal_the_oracle() -> None:
    chance = random.Random(7)
    for _ in range(300):
        rows, labels = make_batch("ordinary", chance)
        refs = torch.randn(chance.randint(1, 12), rows.shape[1], dtype=torch.float64)
        ref_labels = torch.randint(0, 5, (len(refs),)) * 7 - 3
        setting = make_setting(chance)
        plain = (rows.tolist(), labels.tolist(), refs.tolist(), ref_labels.tolist())
        terms = setting.loss.terms(rows, labels, None, refs, ref_labels)
        assert float(terms.total) == pytest.approx(
            literal.terms(setting.oracle, *plain)[3], rel=1e-9, abs=1e-12
        )
        positive = {
            (i, j) for i in range(len(rows)) for j in range(len(refs)) if chance.random() < 0.3
        }
        negative = {
            (i, j) for i in range(len(rows)) for j in range(len(refs)) if chance.random() < 0.3
        }
        negative -= positive
        listed = tuple(
            torch.tensor([pair[place] for pair in sorted(pairs)], dtype=torch.int64)
            for pairs in (positive, negative)
            for place in (0, 1)
        )
        terms = setting.loss.terms(rows, labels, listed, refs, ref_labels)
        expected = literal.terms(setting.oracle, *plain, positive, negative)
        assert float(terms.total) == pytest.approx(expected[3], rel=1e-9, abs=1e-12)


def test_float32_stays_close_to_float64_everywhere() -> None:
    chance = random.Random(11)
    for kind in KINDS:
        for _ in range(100):
            rows, labels = make_batch(kind, chance)
            setting = make_setting(chance)
            unit = torch.nn.functional.normalize(rows)
            if distance_from_an_edge(rows, labels, setting.oracle.epsilon) < 1e-5:
                continue
            # The same float32 numbers in both, so that only the computation differs.
            single = unit.float().requires_grad_()
            double = unit.float().double().requires_grad_()
            low, high = setting.loss(single, labels), setting.loss(double, labels)
            low.backward()
            high.backward()
            assert single.grad is not None
            assert double.grad is not None
            # A similarity carries an error of 1e-7, which the exponent's slope multiplies.
            slope = sum(abs(part) for part in setting.loss.ratio.negative[:2])
            slope += sum(abs(part) for part in setting.loss.ratio.positive[:2])
            bound = 1e-6 * (1.0 + slope) * (1.0 + abs(high.item()))
            assert abs(low.item() - high.item()) < bound
            steepest = 1.0 + float(double.grad.abs().max())
            assert float((single.grad - double.grad).abs().max()) < bound * (steepest + slope)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    rows = torch.randn(40, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.arange(40) % 8
    loss = CBMLLoss.paper("cub")
    leaf = rows.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(leaf, labels)
    found.backward()
    assert found.dtype == torch.float32
    assert leaf.grad is not None
    assert leaf.grad.dtype == dtype
    assert bool(leaf.grad.isfinite().all())
    torch.testing.assert_close(found, loss(rows.float(), labels))


def test_losses_and_gradients_stay_finite_where_numbers_are_extreme() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    sharp = CBMLLoss(
        ratio=LinearRatio(positive_scale=1e-4, negative_scale=1e-4, negative_center=0.0)
    )
    for rows in [
        torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]),
        torch.tensor([[1e30, 0.0], [0.0, 1e30], [1e-30, 0.0], [1e-40, 1e-40]]),
        torch.ones(4, 3),
    ]:
        leaf = rows.clone().requires_grad_()
        value = sharp(leaf, labels)
        value.backward()
        assert leaf.grad is not None
        assert math.isfinite(value.item())
        assert bool(leaf.grad[:2].isfinite().all())


def test_order_and_names_of_labels_do_not_matter() -> None:
    rows, labels = torch.randn(30, 8, dtype=torch.float64), torch.arange(30) % 6
    order = torch.randperm(30)
    loss = CBMLLoss.paper("sop")
    torch.testing.assert_close(loss(rows[order], labels[order]), loss(rows, labels))
    torch.testing.assert_close(loss(rows, 1000 - 13 * labels), loss(rows, labels))


def test_repeated_calls_give_the_same_bits() -> None:
    rows, labels = torch.randn(300, 32), torch.arange(300) % 60
    loss = CBMLLoss()
    assert torch.equal(loss(rows, labels), loss(rows, labels))


def test_the_embeddings_as_their_own_reference_are_the_batch_itself() -> None:
    rows, labels = torch.randn(12, 8, dtype=torch.float64), torch.arange(12) % 3
    loss = CBMLLoss()
    assert torch.equal(loss(rows, labels, None, rows, labels), loss(rows, labels))


def test_second_derivatives_are_refused_in_words() -> None:
    labels = torch.arange(6) % 2
    rows = torch.randn(6, 4, requires_grad=True)
    loss = CBMLLoss()(rows, labels)
    (grad,) = torch.autograd.grad(loss, rows, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        (loss + grad.square().sum()).backward()
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.functional.hessian(lambda x: CBMLLoss()(x, labels), rows)


def test_a_second_backward_needs_retain_graph_as_everywhere() -> None:
    rows = torch.randn(6, 4, requires_grad=True)
    loss = CBMLLoss()(rows, torch.arange(6) % 2)
    loss.backward(retain_graph=True)
    assert rows.grad is not None
    once = rows.grad.clone()
    loss.backward()
    torch.testing.assert_close(rows.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


# torch's tracer itself asks for .grad of tensors that are not leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_loss_works_in_a_compiled_function() -> None:
    loss, labels = CBMLLoss(), torch.arange(12) % 3
    plain, compiled = (torch.randn(12, 4).requires_grad_() for _ in range(2))
    compiled.data.copy_(plain.data)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(rows: Tensor) -> Tensor:
        return loss(rows * 2.0, labels) + rows.sum()

    step(compiled).backward()
    (loss(plain * 2.0, labels) + plain.sum()).backward()
    torch.testing.assert_close(compiled.grad, plain.grad)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_references_pairs_and_other_sizes_compile_whole() -> None:
    loss = CBMLLoss.paper("sop")

    def step(rows: Tensor, labels: Tensor, refs: Tensor) -> Tensor:
        listed = (labels, labels, labels)
        total = loss(rows, labels, None, refs, labels) + loss(rows, labels, listed)
        return total + loss(rows, labels, None, rows, labels) + MetricVariance()(rows, labels)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for size in (12, 20, 33):
        labels = torch.arange(size) % 3
        plain = [torch.randn(size, 4, requires_grad=True) for _ in range(2)]
        whole = [leaf.detach().clone().requires_grad_() for leaf in plain]
        step(plain[0], labels, plain[1]).backward()
        compiled(whole[0], labels, whole[1]).backward()
        for leaf, other in zip(plain, whole, strict=True):
            torch.testing.assert_close(leaf.grad, other.grad)
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(whole[0], labels, whole[1]), step(whole[0], labels, whole[1])
        )
    with pytest.raises(ValueError, match="embeddings holds NaN or infinity in 33 of 33 rows"):
        compiled(torch.full((33, 4), math.nan), labels, whole[1])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_operator_keeps_the_rules_of_torch() -> None:
    """Schema, fake kernel, gradients and traced form agree with each other."""
    for grads in (False, True):
        rows, refs = (torch.randn(size, 4, requires_grad=grads) for size in (6, 5))
        labels, ref_labels = torch.arange(6) % 2, torch.arange(5) % 2
        exponents = [0.0, -4.0, 2.0, 0.0, 20.0, -10.0]
        options = (exponents, "log", 1.0, "", 0.1, False, 1.0, 1.0, 0.2, False)
        with_refs = (rows, refs, labels, ref_labels, None, None, *options, grads, grads)
        torch.library.opcheck(terms._operator, with_refs)
        torch.library.opcheck(
            terms._operator, (rows, None, labels, None, None, None, *options, grads, False)
        )


def test_the_loss_can_be_exported() -> None:
    rows, labels = torch.randn(12, 4), torch.arange(12) % 3
    loss = CBMLLoss()
    program = torch.export.export(loss, (rows, labels))
    torch.testing.assert_close(program.module()(rows, labels), loss(rows, labels))


def test_the_gradient_as_a_function() -> None:
    rows, refs = (torch.randn(size, 4, requires_grad=True) for size in (12, 9))
    labels, ref_labels = torch.arange(12) % 3, torch.arange(9) % 3
    loss = CBMLLoss.paper("sop")

    def value(rows: Tensor, refs: Tensor) -> Tensor:
        return loss(rows, labels) + loss(rows, labels, None, refs, ref_labels)

    value(rows, refs).backward()
    found = torch.func.grad(value, argnums=(0, 1))(rows.detach(), refs.detach())
    torch.testing.assert_close(found, (rows.grad, refs.grad))
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.func.grad(lambda x: torch.func.grad(value)(x, refs).square().sum())(rows.detach())


def test_only_the_total_carries_a_gradient() -> None:
    for size in [0, 6]:
        rows = torch.randn(size, 4, requires_grad=True)
        terms = CBMLLoss().terms(rows, torch.arange(size) % 2)
        assert terms.total.requires_grad
        assert not terms.positive.requires_grad
        assert not terms.negative.requires_grad
        assert not terms.variance.requires_grad


def test_exact_ties_at_the_edge_are_not_hard() -> None:
    """Duplicates of a positive under the wrong label, ε = 0: s_n = min s_p is not above it."""
    rows = torch.eye(8)[[0, 0, 0, 1, 1, 1, 0, 1, 0]]
    labels = torch.arange(9) // 3
    loss = CBMLLoss(ratio=PRODUCTS, mining_margin=0.0)
    oracle = literal.Oracle(*literal.linear(0.5, 0.25, 0.5, 0.05), epsilon=0.0)
    expected = literal.terms(oracle, rows.tolist(), labels.tolist())
    for precision in [torch.float32, torch.float64]:
        assert values(loss, rows.to(precision), labels) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("power", [-30, -25, -22, -21, -19, -15, -10, 0, 10, 15, 20, 25, 30])
def test_the_length_of_the_rows_does_not_matter_in_float32(power: int) -> None:
    rows, labels = torch.randn(20, 8, dtype=torch.float64), torch.arange(20) % 4
    leaf = (rows * 10.0**power).float().requires_grad_()
    loss = CBMLLoss.paper("sop")
    found = loss(leaf, labels)
    found.backward()
    double = rows.requires_grad_()
    expected = loss(double, labels)
    expected.backward()
    assert leaf.grad is not None
    assert double.grad is not None
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    scaled = leaf.grad.double() * 10.0**power
    torch.testing.assert_close(scaled, double.grad, rtol=1e-2, atol=1e-4)


def test_references_of_another_precision_and_no_references() -> None:
    rows, labels = torch.randn(6, 4), torch.arange(6) % 2
    loss = CBMLLoss()
    refs = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(
        loss(rows, labels, None, refs, torch.arange(5) % 2),
        loss(rows, labels, None, refs.float(), torch.arange(5) % 2),
    )
    nothing = (None, torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    assert loss(rows, labels, *nothing).item() == 0.0
    sqrt = CBMLLoss(averaging="sqrt", mining_margin=None)
    assert sqrt(rows, labels, *nothing).item() == 2.0, "f(1) on either side"
