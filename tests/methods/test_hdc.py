"""HDC: its worked example, its gradient, both cascades against plain loops, and its limits."""

import pytest
import torch
from torch import Tensor

from cbml.methods import HDC
from cbml.methods.hdc import LEVEL_NAMES
from tests.methods.examples import ANGLES, circle, loss_of
from tests.oracles import methods

EQUAL = dict.fromkeys(LEVEL_NAMES, circle(ANGLES[0]))
SHARES = (1.0, 0.5, 0.2)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1.0, (0.701892, 0.779885, 0.812616)), (10.0, (4.358662, 5.655579, 8.126156))],
)
def test_worked_example(factor: float, expected: tuple[float, ...]) -> None:
    found = loss_of(HDC(negative_factor=factor), EQUAL)
    assert [float(term) for term in found.terms.values()] == pytest.approx(expected, abs=1e-6)
    assert float(found.total) == pytest.approx(sum(expected), abs=3e-6)


def test_the_gradient_is_the_authors() -> None:
    rows = circle(ANGLES[0]).requires_grad_()
    parts = {**EQUAL, "low": rows}
    loss_of(HDC(negative_factor=1.0), parts).total.backward()
    expected = [[0.058489, -0.160697], [-0.144345, 0.226577], [0.297166, -0.065880], [-0.211309, 0]]
    torch.testing.assert_close(rows.grad, torch.tensor(expected).double(), atol=1e-6, rtol=0)


def random_levels(seed: int) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
    rows = [torch.randn(10, 3, generator=generator).double() + 0.5 for _ in LEVEL_NAMES]
    units = [torch.nn.functional.normalize(level, dim=1) for level in rows]
    return dict(zip(LEVEL_NAMES, units, strict=True)), labels


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same(seed: int) -> None:
    parts, labels = random_levels(seed)
    levels = [part.tolist() for part in parts.values()]
    found = loss_of(HDC(margin=0.8, negative_factor=3.0), parts, labels)
    expected = [
        methods.hard_contrastive(level, labels.tolist(), 0.8, 3.0, share)
        for level, share in zip(levels, SHARES, strict=True)
    ]
    assert [float(term) for term in found.terms.values()] == pytest.approx(expected, rel=1e-9)
    nested = loss_of(HDC(margin=0.8, negative_factor=3.0, cascade="nested"), parts, labels)
    wanted = methods.nested_hdc(levels, labels.tolist(), 0.8, 3.0, list(SHARES))
    assert float(nested.total) == pytest.approx(wanted, rel=1e-9)
    assert float(nested.terms["low"]) == pytest.approx(expected[0], rel=1e-9)
    assert float(nested.terms["high"]) != pytest.approx(expected[2], rel=1e-3)


def test_nothing_active_is_zero_with_a_graph() -> None:
    rows = circle((0, 0, 180, 180)).requires_grad_()
    found = loss_of(HDC(), dict.fromkeys(LEVEL_NAMES, rows))
    found.total.backward()
    assert float(found.total.detach()) == 0.0
    assert float(rows.grad.abs().sum()) == 0.0


def test_heads_share_the_width_and_carry_the_weights() -> None:
    heads = HDC(weights=[1, 1, 2]).heads(512)
    assert [head.dim for head in heads] == [170, 171, 171]
    assert [head.dim for head in HDC().heads(384)] == [128] * 3
    assert [head.weight for head in heads] == [1.0, 1.0, 2.0]
    assert [(head.tap, head.hidden) for head in heads] == [
        ("low", (1024,)),
        ("middle", (1024,)),
        ("", ()),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hard_shares": (1.0, 0.5)}, "one number for each of three levels"),
        ({"hard_shares": (1.0, 0.5, 0.0)}, "hard_shares"),
        ({"cascade": "deep"}, "one of 'independent', 'nested'"),
        ({"margin": 0.0}, "margin"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HDC(**options)
