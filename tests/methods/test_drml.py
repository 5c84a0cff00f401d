"""DRML: the worked example of its head and its routing, plain loops, its gradients, its limits."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbml.data import ImageDataset, TrainTransform
from cbml.errors import BadData
from cbml.methods import MarginDRML, ProxyAnchorDRML
from cbml.models import Embedder
from cbml.models.heads import Relations, feature_piece
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Distributed, Method, TrainingView, build_batches
from tests.oracles import baseline_proxies, baselines, methods

CLASSES, DIM, COUNT = 5, 8, 14
# Of the sheet: features (h_1, h_2) that the maps below turn into its q and t.
UNITS = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).double()
SOURCES = torch.tensor([[1.0, 2.0], [0.0, 1.0]]).double()
TARGETS = torch.tensor([[0.0, 1.0], [1.0, -1.0]]).double()


def worked() -> Relations:
    """K = 2, d = 2, with layers that read (1, 0) of each piece."""
    relations = Relations(4, 2, 2).double()
    with torch.no_grad():
        for place in range(2):
            for layers, rows in ((relations.sources, SOURCES), (relations.targets, TARGETS)):
                layers[place].weight.zero_()
                layers[place].weight[:, 0] = rows[place]
        relations.score.weight.copy_(torch.tensor([[1.0, -0.5]]))
        relations.score.bias.fill_(0.25)
    return relations


FEATURES = torch.tensor([[1.0, 0.0, 1.0, 0.0]]).double()


def test_worked_example_of_the_head() -> None:
    relations = worked()
    mixed = [3.0 * UNITS[:1], 0.5 * UNITS[1:]]  # of any length
    found = relations(FEATURES, mixed)
    torch.testing.assert_close(found, UNITS.reshape(1, 4))  # at the start: the branches
    with torch.no_grad():
        relations.integrate.weight.copy_(torch.cat([torch.eye(2), 0.5 * torch.eye(2)], dim=1))
    expected = torch.tensor([[1.45, 0.1, 0.6, 0.8]]).double()
    torch.testing.assert_close(relations(FEATURES, mixed), expected)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same_head(seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        relations = Relations(11, 3, 3).double()  # pieces of 3, 4 and 4
        nn.init.normal_(relations.integrate.weight)
        nn.init.normal_(relations.score.bias)
        features, rows = torch.randn(6, 11).double(), torch.randn(3, 6, 3).double()
    found = relations(features, list(rows))
    for number in range(6):
        pieces = [feature_piece(features, k, 3)[number] for k in range(3)]
        expected = methods.related_branches(
            [rows[k, number].tolist() for k in range(3)],
            [layer(h).tolist() for layer, h in zip(relations.sources, pieces, strict=True)],
            [layer(h).tolist() for layer, h in zip(relations.targets, pieces, strict=True)],
            (relations.score.weight[0].tolist(), relations.score.bias.item()),
            (relations.integrate.weight.tolist(), relations.integrate.bias.tolist()),
        )
        assert found[number].tolist() == pytest.approx(expected, rel=1e-9)


def test_worked_example_of_the_routing() -> None:
    """Two images whose errors are ((.5, 2), (2, .125)): decoders that give zero."""
    method = ProxyAnchorDRML(num_classes=2, embedding_size=4, branches=2)
    method.attach(Embedder("conv4", dim=4, heads=method.heads(4)))
    for decoder in method.decoders:
        nn.init.zeros_(decoder.weight)
    features = torch.zeros(2, 64)
    features[0, 0], features[0, 32] = 4.0, 8.0  # squares of 32 numbers: means 0.5 and 2
    features[1, 0], features[1, 32] = 8.0, 2.0
    units = [torch.tensor([[1.0, 0.0], [0.0, 1.0]])] * 2
    errors = method.errors(features, units)
    torch.testing.assert_close(errors, torch.tensor([[0.5, 2.0], [2.0, 0.125]]))
    assert float(errors.detach().mean()) == pytest.approx(1.15625)
    found = loss_of(method, features, units, torch.tensor([0, 1]))
    alone = [loss(units[k][[k]], torch.tensor([k])) for k, loss in enumerate(method.branch_losses)]
    assert found.terms["branches"].item() == pytest.approx(sum(alone).item(), rel=1e-6)


def loss_of(method: Method, features: Tensor, branches: list[Tensor], labels: Tensor):  # type: ignore[no-untyped-def]
    parts = {f"branch_{k + 1}": rows for k, rows in enumerate(branches)}
    whole = nn.functional.normalize(torch.cat(branches, dim=1), dim=1)
    outputs = Outputs(whole, {**parts, "features": features})
    return method(outputs, BatchInfo(labels, torch.arange(len(labels))))


def attached(method: Method) -> tuple[Embedder, Method]:
    model = Embedder("conv4", dim=DIM, heads=method.heads(DIM), batch_norm="frozen", seed=1)
    method.attach(model)
    return model, method


def random_batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    pixels = torch.randn(COUNT, 3, 16, 16, generator=generator)
    return pixels, torch.randint(0, CLASSES, (COUNT,), generator=generator)


def test_plain_loops_give_the_same_loss() -> None:
    model, method = attached(ProxyAnchorDRML(num_classes=CLASSES, embedding_size=DIM))
    pixels, labels = random_batch()
    outputs = model.forward_outputs(pixels, method.parts)
    found = method(outputs, BatchInfo(labels, torch.arange(COUNT)))
    branches = [outputs.parts[name].tolist() for name in method.branches]
    decoded = [
        decoder(outputs.parts[name]).tolist()
        for decoder, name in zip(method.decoders, method.branches, strict=True)
    ]
    errors = methods.reconstruction_errors(outputs.parts["features"].tolist(), decoded)
    chosen = [row.index(min(row)) for row in errors]
    assert len(set(chosen)) > 1
    expected, y = 0.0, labels.tolist()
    for k, loss in enumerate(method.branch_losses):
        own = [n for n in range(COUNT) if chosen[n] == k]
        if own:
            expected += baseline_proxies.proxy_anchor(
                [branches[k][n] for n in own], [y[n] for n in own],
                loss._loss.proxies.tolist(), 0.2, 64.0,
            )  # fmt: skip
    whole = method.whole_loss._loss.proxies.tolist()
    expected += 10 * baseline_proxies.proxy_anchor(outputs.embeddings.tolist(), y, whole, 0.2, 64.0)
    expected += np.mean(errors)
    assert found.total.item() == pytest.approx(expected, rel=1e-5)


def test_margin_losses_take_the_place_of_the_proxies() -> None:
    model, method = attached(MarginDRML(num_classes=CLASSES, embedding_size=DIM))
    pixels, labels = random_batch()
    outputs = model.forward_outputs(pixels, method.parts)
    triplets = method.whole_loss.mine(outputs.embeddings, labels)
    method.whole_loss.calls.zero_()
    found = method(outputs, BatchInfo(labels, torch.arange(COUNT)))
    listed = list(zip(*(part.tolist() for part in triplets), strict=True))
    expected = baselines.margin(outputs.embeddings.tolist(), labels.tolist(), listed)
    assert found.terms["whole"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [ProxyAnchorDRML, MarginDRML])
def test_decoders_and_relations_leave_the_backbone_alone(kind: type[Method]) -> None:
    model, method = attached(kind(num_classes=CLASSES, embedding_size=DIM, whole_weight=0.0))
    pixels, labels = random_batch()
    outputs = model.forward_outputs(pixels, method.parts)
    found = method(outputs, BatchInfo(labels, torch.arange(COUNT)))
    found.terms["reconstruction"].backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(float(p.grad.abs().sum()) > 0 for p in method.decoders.parameters())
    relations = model.head["whole"]
    features = outputs.parts["features"].detach().requires_grad_()
    units = [outputs.parts[name].detach() for name in method.branches]
    relations(features, units).sum().backward()
    assert features.grad is None


@pytest.mark.parametrize("kind", [ProxyAnchorDRML, MarginDRML])
def test_a_branch_without_images_is_zero_with_a_graph(kind: type[Method]) -> None:
    _, method = attached(kind(num_classes=CLASSES, embedding_size=DIM, branches=2))
    features = torch.zeros(4, 64)
    features[:, 32:] = 3.0  # the first branch knows every image better
    rows = nn.functional.normalize(torch.randn(4, 4), dim=1).requires_grad_()
    other = rows.detach().clone().requires_grad_()
    found = loss_of(method, features, [rows, other], torch.tensor([0, 0, 1, 1]))
    found.terms["branches"].backward()
    assert float(rows.grad.abs().sum()) > 0
    assert float(other.grad.abs().sum()) == 0


def test_the_backbone_rests_in_the_first_epoch(images: ImageDataset) -> None:
    batches = build_batches(
        images, transform=TrainTransform(crop=16), samples_per_class=3, seed=3, workers=0
    )
    model, method = attached(ProxyAnchorDRML(num_classes=CLASSES, embedding_size=DIM))
    view = TrainingView(model, batches, Distributed(), 0, 10)
    assert method.before_epoch(view).rest == {"backbone"}
    batches.sampler.epoch = 1
    assert method.before_epoch(view) is None


def test_groups_have_the_authors_rates() -> None:
    _, method = attached(ProxyAnchorDRML(num_classes=CLASSES, embedding_size=DIM))
    groups = {group.name: group for group in method.parameter_groups()}
    assert (groups["loss"].factor, groups["decoders"].factor) == (200.0, 20.0)
    assert (len(groups["loss"].parameters), len(groups["decoders"].parameters)) == (5, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_size": 10}, "dim 10: 4 branches of one width need a multiple of 4"),
        ({"branches": 0}, "branches"),
        ({"whole_weight": -1.0}, "whole_weight"),
        ({"warmup_epochs": -1}, "warmup_epochs"),
    ],
)
@pytest.mark.parametrize("kind", [ProxyAnchorDRML, MarginDRML])
def test_what_cannot_be_meant_is_refused(
    kind: type[Method], options: dict[str, object], message: str
) -> None:
    with pytest.raises((ValueError, BadData), match=message):
        kind(**{"num_classes": 3, "embedding_size": DIM, **options})
