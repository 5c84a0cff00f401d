"""DeML: its worked examples, plain loops, its limits, and the head that it asks for."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.methods import DeML
from cbml.methods.deml import active, decoupled
from cbml.models import ChannelAttention, Embedder, export_onnx
from cbml.models.execution import fold_batch_norms
from cbml.models.object_attention import crop_to_object
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


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def step(method: DeML, dim: int = 20) -> tuple[Embedder, StepLoss]:
    model = Embedder("conv4", dim=dim, head=method.head, batch_norm="frozen_statistics", seed=1)
    method.attach(model)
    outputs = model.forward_outputs(images(), method.parts)
    found: StepLoss = method(outputs, BatchInfo(LABELS, torch.arange(4)))
    return model, found


def test_one_attention_of_one_stream_is_a_plain_embedder_with_a_binomial_deviance() -> None:
    model, found = step(DeML(streams=1, attentions=1, activity=0.0))
    rows = model(images())
    expected = LOSSES["binomial_deviance"](negative_cost=35.0)(rows, LABELS)
    torch.testing.assert_close(found.total, expected)
    assert float(found.terms["decoupling"]) == 0.0


@pytest.mark.parametrize("streams", [1, 3])
def test_the_total_is_the_weighted_sum_of_its_terms(streams: int) -> None:
    _, found = step(DeML(streams=streams))
    terms = found.terms
    expected = terms["binomial"] + 0.2 * terms["decoupling"] + 0.014 * terms["activity"]
    torch.testing.assert_close(found.total, expected)
    assert all(float(term.detach()) > 0 for term in terms.values())


def attended(head: nn.Module, backbone: nn.Module, seen: Tensor) -> tuple[list[Tensor], Tensor]:
    """What the attentions of one network give for images, and the map of the first."""
    layers = [*backbone.children()]
    front = nn.Sequential(*layers[:12])(seen)
    maps = [nn.Sequential(*layers[12:])(attention(front) * front) for attention in head.attentions]
    return [head.linear(found.mean(dim=(2, 3))) for found in maps], maps[0]


@pytest.mark.parametrize(
    ("streams", "dim", "widths"),
    [(1, 14, (5, 5, 4)), (3, 22, (3, 3, 3, 3, 2, 2, 2, 2, 2))],
)
def test_attentions_weigh_the_map_and_share_one_layer(
    streams: int, dim: int, widths: tuple[int, ...]
) -> None:
    """The rest of a network sees each weighed map by itself; the next network sees a crop."""
    model, _ = step(DeML(streams=streams), dim=dim)
    model.eval()
    seen, parts, features = images(), [], []
    with torch.no_grad():
        for each in (model, *model.streams.values()):
            rows, found = attended(each.head, each.backbone, seen)
            parts += rows
            features.append(found.mean(dim=(2, 3)))
            seen = crop_to_object(seen, found)
        units = [
            functional.normalize(part[:, :width], dim=1)
            for part, width in zip(parts, widths, strict=True)
        ]
        expected = torch.cat(units, dim=1) / math.sqrt(len(widths))
        torch.testing.assert_close(model(images()), expected)
        outputs = model.forward_outputs(images(), ("features", "map", *DeML(streams=streams).parts))
    assert [f"attention_{number + 1}" for number in range(len(widths))] == [
        name for name in outputs.parts if name.startswith("attention")
    ]
    for part, expected in zip(DeML(streams=streams).parts, features, strict=True):
        torch.testing.assert_close(outputs.parts[part], expected)
    assert outputs.parts["map"].shape[0] == 4
    assert model.head.linear.weight.shape == (widths[0], 64)


def test_the_losses_of_the_streams_are_added() -> None:
    method = DeML(scale=3.0, threshold=0.4)
    model, found = step(method)
    outputs = model.forward_outputs(images(), method.parts)
    expected = torch.zeros(())
    for number, stream in enumerate((model, *model.streams.values())):
        part = "features" if number == 0 else f"features:stream_{number + 1}"
        rows = [outputs.parts[f"attention_{3 * number + j}"] for j in (1, 2, 3)]
        expected = expected + sum(method.pair_loss(row, LABELS) for row in rows) / 3
        for first, second in ((0, 1), (0, 2), (1, 2)):
            expected = expected + 0.2 * decoupled(rows[first], rows[second])
        expected = expected + 0.014 * active(outputs.parts[part], stream.head.linear.weight)
    torch.testing.assert_close(found.total, expected)
    activity = torch.autograd.grad(
        found.terms["activity"], [*model.parameters()], allow_unused=True, retain_graph=True
    )
    moved = [
        name
        for (name, _), g in zip(model.named_parameters(), activity, strict=True)
        if g is not None
    ]
    assert moved == [f"{layer}.weight" for layer in method.layers]


def test_one_stream_is_the_first_of_three() -> None:
    """With the same widths, its parts are those that the first network of three gives."""
    one = Embedder("conv4", dim=9, head=DeML(streams=1).head, seed=1).eval()
    three = Embedder("conv4", dim=27, head=DeML().head, seed=1).eval()
    assert not one.streams
    with torch.no_grad():
        found, of_three = one(images()), three(images())
    torch.testing.assert_close(found, of_three[:, :9] * math.sqrt(3))


def test_streams_start_from_the_same_network_and_each_learns_its_own() -> None:
    method = DeML()
    model, found = step(method)
    networks = [model.backbone, *(stream.backbone for stream in model.streams.values())]
    start = [[value.clone() for value in network.parameters()] for network in networks]
    assert all(torch.equal(*pair) for pair in zip(start[0], start[2], strict=True))
    assert not torch.equal(
        model.head.linear.weight[:2], model.streams["stream_2"].head.linear.weight[:2]
    )
    backbone, head = model.parameter_groups(0.1, backbone_factor=0.5)
    assert (backbone["lr"], head["lr"]) == (0.05, 0.1)
    assert [id(p) for p in backbone["params"]] == [id(p) for n in networks for p in n.parameters()]
    assert len(backbone["params"]) + len(head["params"]) == len([*model.parameters()])
    found.total.backward()
    torch.optim.SGD([backbone, head]).step()
    after = [[*network.parameters()] for network in networks]
    for old, new in zip(start, after, strict=True):
        assert not [p.shape for p, q in zip(old, new, strict=True) if torch.equal(p, q)]
    for first, second in ((0, 1), (1, 2)):
        assert not torch.equal(after[first][0], after[second][0])


def test_frozen_batch_norms_and_folding_hold_in_every_stream() -> None:
    model, _ = step(DeML())
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 12
    assert not any(norm.training for norm in norms)
    assert fold_batch_norms(model, images(1)) == 12
    frozen = Embedder("conv4", dim=20, head=DeML().head, batch_norm="frozen")
    trained = [p for p in frozen.parameters() if p.requires_grad]
    assert len(trained) == len([*frozen.parameters()]) - 24


@pytest.mark.parametrize("streams", [1, 3])
def test_a_saved_model_embeds_the_same(streams: int, tmp_path: Path) -> None:
    model, found = step(DeML(hidden=8, tap="low", streams=streams))
    found.total.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.eval().save(tmp_path)
    loaded = Embedder.load(tmp_path)
    assert loaded.head_kind == ChannelAttention(tap="7", hidden=8, streams=streams)
    torch.testing.assert_close(loaded(images()), model(images()))


def test_an_exported_file_looks_at_the_same_crops(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model, _ = step(DeML(streams=2, attentions=1))
    pixels = (images(3) * 64 + 128).clamp(0, 255).byte()
    found = export_onnx(model, tmp_path / "model.onnx", images=[*pixels])
    assert found.largest_difference < 1e-5


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(BadData, match="dim 17: 9 attentions need two numbers each"):
        Embedder("conv4", dim=17, head=DeML().head)
    with pytest.raises(BadData, match="hidden is 0"):
        DeML(hidden=0)
    with pytest.raises(BadData, match="streams is 0"):
        DeML(streams=0)
    with pytest.raises(ValueError, match="decoupling"):
        DeML(decoupling=-1.0)
    model, _ = step(DeML(streams=1))
    with pytest.raises(BadData, match=r"build the model with head=method\.head"):
        DeML().attach(model)
    with pytest.raises(BadData, match="conv4 has no such module"):
        model.forward_outputs(images(), ("features:stream_2",))
    pytest.importorskip("timm")
    with pytest.raises(BadData, match="levels are not known"):
        Embedder("timm:resnet10t", weights="none", head=DeML().head)
    with pytest.raises(BadData, match="'backbone' hides the map"):
        Embedder("efficientnet_lite0", weights="none", pooling="backbone", head=DeML().head)
