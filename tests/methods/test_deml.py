"""DeML: its worked examples, plain loops, its limits, and the head that it asks for."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.methods import DeML
from cbml.methods.deml import active, decoupled
from cbml.models import ChannelAttention, Embedder
from cbml.training import BatchInfo, StepLoss
from tests.methods.examples import ANGLES, LABELS, circle
from tests.oracles import methods


def test_worked_examples() -> None:
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    other = torch.tensor([[math.cos(1.0), math.sin(1.0)]], dtype=torch.float64)
    assert float(decoupled(one, other)) == pytest.approx(0.541996, abs=1e-6)
    assert float(decoupled(one, -one)) == 0.0
    loss = DeML().pair_loss
    rows = circle(ANGLES[0])
    positive = torch.nn.functional.softplus(-2 * (rows[0] @ rows[1] - 0.5))
    negative = torch.nn.functional.softplus(70 * (rows[0] @ rows[2] - 0.5))
    assert float(positive) == pytest.approx(0.462083, abs=1e-6)
    assert float(negative) == pytest.approx(0.004432, abs=1e-6)
    only = torch.tensor([0, 0, 1])
    far = float(functional.softplus(70 * (rows[1] @ rows[2] - 0.5)))
    expected = 0.462083 + (0.004432 + far) / 2
    assert float(loss(rows[:3], only)) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, second = functional.normalize(torch.randn(2, 5, 3, generator=generator).double(), dim=2)
    expected = methods.decoupling(first.tolist(), second.tolist())
    assert float(decoupled(first, second)) == pytest.approx(expected, rel=1e-9)
    features, weight = torch.randn(2, 4, 6, generator=generator).double()
    expected = methods.activity(features.tolist(), weight.tolist())
    assert float(active(features, weight)) == pytest.approx(expected, rel=1e-9)


def images() -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def step(method: DeML, dim: int = 12) -> tuple[Embedder, StepLoss]:
    model = Embedder("conv4", dim=dim, head=method.head, batch_norm="frozen_statistics", seed=1)
    method.attach(model)
    outputs = model.forward_outputs(images(), method.parts)
    found: StepLoss = method(outputs, BatchInfo(LABELS, torch.arange(4)))
    return model, found


def test_one_attention_is_a_plain_embedder_with_a_binomial_deviance() -> None:
    model, found = step(DeML(attentions=1, activity=0.0))
    rows = model(images())
    expected = LOSSES["binomial_deviance"](negative_cost=35.0)(rows, LABELS)
    torch.testing.assert_close(found.total, expected)
    assert float(found.terms["decoupling"]) == 0.0


def test_the_total_is_the_weighted_sum_of_its_terms() -> None:
    _, found = step(DeML())
    terms = found.terms
    expected = terms["binomial"] + 0.2 * terms["decoupling"] + 0.014 * terms["activity"]
    torch.testing.assert_close(found.total, expected)
    assert all(float(term.detach()) > 0 for term in terms.values())


def test_attentions_weigh_the_map_and_share_one_layer() -> None:
    """The rest of the network sees each weighed map by itself."""
    model, _ = step(DeML(), dim=14)
    model.eval()
    head, layers = model.head, [*model.backbone]
    front = torch.nn.Sequential(*layers[:12])(images())
    with torch.no_grad():
        parts = []
        for attention, width in zip(head.attentions, (5, 5, 4), strict=True):
            features = torch.nn.Sequential(*layers[12:])(attention(front) * front)
            parts.append(
                functional.normalize(head.linear(features.mean(dim=(2, 3)))[:, :width], dim=1)
            )
        expected = torch.cat(parts, dim=1) / math.sqrt(3)
        torch.testing.assert_close(model(images()), expected)
        outputs = model.forward_outputs(images(), ("features", "map"))
    assert outputs.parts["map"].shape[0] == len(outputs.parts["features"]) == 4
    assert head.linear.weight.shape == (5, 64)


def test_a_saved_model_embeds_the_same(tmp_path: Path) -> None:
    model, _ = step(DeML(hidden=8, tap="low"))
    model.eval().save(tmp_path)
    loaded = Embedder.load(tmp_path)
    assert loaded.head_kind == ChannelAttention(tap="7", hidden=8)
    torch.testing.assert_close(loaded(images()), model(images()))


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(BadData, match="dim 2: 3 attentions need"):
        Embedder("conv4", dim=2, head=DeML().head)
    with pytest.raises(BadData, match="hidden is 0"):
        DeML(hidden=0)
    with pytest.raises(ValueError, match="decoupling"):
        DeML(decoupling=-1.0)
    pytest.importorskip("timm")
    with pytest.raises(BadData, match="levels are not known"):
        Embedder("timm:resnet10t", weights="none", head=DeML().head)
