"""What holds for every method that learns with labels."""

import pytest
import torch
from torch import Tensor

from cbml.errors import BadData
from cbml.methods import METHODS
from cbml.models import Embedder
from cbml.training import BatchInfo, Distributed, Method
from cbml.training.gradients import accumulate_gradients
from tests.methods.test_all import CASES, DIM, UNLABELED
from tests.training.test_gradients import assert_close, batch

LABELED = [name for name in METHODS if name not in UNLABELED]

#: Parameters with a row for each class.
CLASS_VECTORS = {
    "hdml": ("method.classifier.0.weight", "method.classifier.0.bias"),
    "fusing_net": ("method.classifier",),
}


def attached(name: str, batch_norm: str = "frozen_statistics") -> tuple[Embedder, Method]:
    method = CASES[name]()
    model = Embedder(
        "conv4",
        dim=DIM,
        heads=method.heads(DIM),
        head=method.head,
        batch_norm=batch_norm,
        seed=1,
    )
    method.attach(model)
    return model, method


def gradients(
    name: str,
    pixels: Tensor,
    labels: Tensor,
    chunk_size: int | None,
    indices: Tensor | None = None,
) -> tuple[float, dict[str, Tensor]]:
    model, method = attached(name)
    numbers = torch.arange(len(labels)) if indices is None else indices
    found = accumulate_gradients(
        lambda chunk: model.forward_outputs(chunk, method.parts),
        lambda outputs: method(outputs, BatchInfo(labels, numbers)),
        pixels,
        parameters=list(model.parameters()),
        loss_parameters=list(method.parameters()),
        distributed=Distributed(),
        chunk_size=chunk_size,
        teacher=method.teach,
    )
    named = [*model.named_parameters(), *method.named_parameters("method")]
    return found.loss, {key: p.grad for key, p in named if p.grad is not None}


@pytest.mark.parametrize("name", LABELED)
def test_chunks_order_and_names_of_labels_do_not_matter(name: str) -> None:
    pixels, labels = batch()
    whole = gradients(name, pixels, labels, None)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))
    others = {
        "chunks": gradients(name, pixels, labels, 5),
        "order": gradients(name, pixels[order], labels[order], None, order),
        "names": gradients(name, pixels, labels.max() - labels, None),
    }
    for kind, (loss, found) in others.items():
        for key in CLASS_VECTORS.get(name, ()) if kind == "names" else ():
            classes = int(labels.max()) + 1  # the vectors of classes are renamed with them
            found[key] = torch.cat([found[key][:classes].flip(0), found[key][classes:]])
        assert loss == pytest.approx(whole[0], rel=1e-5)
        assert_close(whole[1], found, 1e-4)


@pytest.mark.parametrize("name", LABELED)
def test_everything_it_trains_gets_a_finite_gradient(name: str) -> None:
    _, found = gradients(name, *batch(), None)
    model, method = attached(name)
    trained = [*model.named_parameters(), *method.named_parameters("method")]
    assert found.keys() == {key for key, parameter in trained if parameter.requires_grad}
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())
    assert all(float(gradient.abs().sum()) > 0 for gradient in found.values())


def separation(model: Embedder, pixels: Tensor, labels: Tensor) -> float:
    """Mean similarity within classes minus that between them."""
    with torch.no_grad():
        rows = model(pixels)
    similarity, same = rows @ rows.T, labels[:, None] == labels[None, :]
    return float(similarity[same].mean() - similarity[~same].mean())


@pytest.mark.parametrize("name", LABELED)
def test_it_learns_classes_that_can_be_told_apart(name: str) -> None:
    """The loss itself need not fall: some are means over the pairs that are still wrong."""
    pixels, labels = batch()
    shades = torch.linspace(-1.5, 1.5, int(labels.max()) + 1)
    pixels = 0.3 * pixels + shades[labels, None, None, None]
    model, method = attached(name)
    before = separation(model, pixels, labels)
    optimizer = torch.optim.Adam([*model.parameters(), *method.parameters()], lr=2e-3)
    for step in range(30):
        outputs = model.forward_outputs(pixels, method.parts).with_parts(method.teach(pixels))
        total = method(outputs, BatchInfo(labels, torch.arange(len(labels)), step=step)).total
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    assert separation(model, pixels, labels) > before + 0.4


@pytest.mark.parametrize("name", [name for name in LABELED if CASES[name]().heads(DIM)])
def test_a_model_without_its_heads_is_refused(name: str) -> None:
    with pytest.raises(BadData, match="build it with heads"):
        CASES[name]().attach(Embedder("conv4", dim=DIM))


@pytest.mark.parametrize("name", [name for name in LABELED if CASES[name]().head])
def test_a_model_without_its_head_is_refused(name: str) -> None:
    with pytest.raises(BadData, match="head=method"):
        CASES[name]().attach(Embedder("conv4", dim=DIM))
