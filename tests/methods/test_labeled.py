"""What holds for every method that learns with labels."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from cbml.errors import BadData
from cbml.methods import METHODS
from cbml.models import Embedder
from cbml.training import BatchInfo, Distributed, Method
from cbml.training.gradients import accumulate_gradients
from tests.methods.test_all import CASES, DIM, UNLABELED
from tests.training import test_gradients
from tests.training.test_gradients import assert_close

LABELED = [name for name in METHODS if name not in UNLABELED]
#: Streams of batches that train different parameters.
STREAMS = {"divide_conquer": range(3), "d_and_c": range(4), "mic": range(2)}
#: Parameters with a row for each class, which change places when classes do, by their last names.
PER_CLASS = (
    *("class_beta", "beta", "proxies", "classifier"),
    *("classifier.0.weight", "classifier.0.bias"),
)
#: Rows of these belong together: an order is one of groups of so many.
GROUPED = {"smart_mining": 3}
#: Another order of the rows draws other pairs from the same generator.
DRAWS = {"drml_mdw"}
#: Proxies and β move this much faster, and would be thrown about.
SLOW = dict.fromkeys(("drml_pa", "drml_mdw", "dcml_mdw", "sharing_dml", "pa_diml"), 5e-4)
#: A branch that knows no image best has nothing to learn from this batch.
UNUSED = ("method.branch_losses",)
#: Anchor, positive and negative four times, from three images of each of four classes.
TRIPLETS = [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2]


def batch(name: str) -> tuple[Tensor, Tensor]:
    pixels, labels = test_gradients.batch()
    return (pixels[TRIPLETS], labels[TRIPLETS]) if name in GROUPED else (pixels, labels)


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
    for key, parameter in model.named_parameters():
        # Relations begin without any weight, and there may be none.
        parameter.data += 0.1 * key.endswith("integrate.weight") + key.endswith("score.bias")
    return model, method


def gradients(
    name: str,
    pixels: Tensor,
    labels: Tensor,
    chunk_size: int | None = None,
    *,
    indices: Tensor | None = None,
    stream: int = 0,
    names: Tensor | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients; the rows of the class vectors are those of the old names."""
    model, method = attached(name)
    indices = torch.arange(len(labels)) if indices is None else indices
    if names is not None:
        labels = names[labels]
        with torch.no_grad():
            for parameter in per_class(dict(method.named_parameters())).values():
                parameter[names] = parameter.clone()
    found = accumulate_gradients(
        lambda chunk: model.forward_outputs(chunk, method.parts),
        lambda outputs: method(outputs, BatchInfo(labels, indices, stream)),
        pixels,
        parameters=list(model.parameters()),
        loss_parameters=list(method.parameters()),
        distributed=Distributed(),
        chunk_size=chunk_size,
        teacher=method.teach,
    )
    named = [*model.named_parameters(), *method.named_parameters("method")]
    gradients = {key: p.grad for key, p in named if p.grad is not None}
    if names is not None:
        gradients |= {key: found[names] for key, found in per_class(gradients).items()}
    return found.loss, gradients


def per_class(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: found for key, found in named.items() if key.endswith(PER_CLASS)}


@pytest.mark.parametrize("name", LABELED)
def test_chunks_order_and_names_of_labels_do_not_matter(name: str) -> None:
    pixels, labels = batch(name)
    whole = gradients(name, pixels, labels)
    size = GROUPED.get(name, 1)
    groups = torch.randperm(len(labels) // size, generator=torch.Generator().manual_seed(5))
    order = torch.arange(len(labels)).view(-1, size)[groups].flatten()
    others = {
        "chunks": gradients(name, pixels, labels, 5),
        "names": gradients(name, pixels, labels, names=torch.tensor([3, 5, 0, 2, 1, 4])),
    }
    if name not in DRAWS:
        others["order"] = gradients(name, pixels[order], labels[order], indices=order)
    for loss, found in others.values():
        assert loss == pytest.approx(whole[0], rel=1e-5)
        assert_close(whole[1], found, 1e-4)


@pytest.mark.parametrize("name", LABELED)
def test_everything_it_trains_gets_a_finite_gradient(name: str) -> None:
    moved = set()
    for stream in STREAMS.get(name, range(1)):
        _, found = gradients(name, *batch(name), stream=stream)
        assert all(bool(gradient.isfinite().all()) for gradient in found.values())
        moved |= {key for key, gradient in found.items() if float(gradient.abs().sum()) > 0}
    model, method = attached(name)
    own = [group for one in method.optimizers().values() for group in one.param_groups]
    elsewhere = {id(parameter) for group in own for parameter in group["params"]}
    named = [*model.named_parameters(), *method.named_parameters("method")]
    trained = {key: id(parameter) for key, parameter in named if parameter.requires_grad}
    # What has an optimizer of its own may be trained by another gradient than the loss's.
    still = {key for key, place in trained.items() if place not in elsewhere} - moved
    assert not [key for key in still if not key.startswith(UNUSED)]
    assert moved <= trained.keys()


def separation(model: Embedder, pixels: Tensor, labels: Tensor) -> float:
    """Mean similarity within classes minus that between them."""
    with torch.no_grad():
        rows = model(pixels)
    similarity, same = rows @ rows.T, labels[:, None] == labels[None, :]
    return float(similarity[same].mean() - similarity[~same].mean())


@pytest.mark.parametrize("name", LABELED)
def test_it_learns_classes_that_can_be_told_apart(name: str) -> None:
    """The loss itself need not fall: some are means over the pairs that are still wrong."""
    pixels, labels = batch(name)
    shades = torch.linspace(-1.5, 1.5, int(labels.max()) + 1)
    pixels = 0.3 * pixels + shades[labels, None, None, None]
    model, method = attached(name)
    before = separation(model, pixels, labels)
    rate = SLOW.get(name, 2e-3)
    groups = [{"params": [*model.parameters()], "lr": rate}]
    if name in SLOW:
        groups += [
            {"params": [*group.parameters], "lr": rate * group.factor}
            for group in method.parameter_groups()
        ]
    elif [*method.parameters()]:
        groups.append({"params": [*method.parameters()], "lr": rate})
    optimizer = torch.optim.Adam(groups)
    streams, indices = STREAMS.get(name, range(1)), torch.arange(len(labels))
    for step in range(30):
        outputs = model.forward_outputs(pixels, method.parts).with_parts(method.teach(pixels))
        info = BatchInfo(labels, indices, streams[step % len(streams)], step)
        total = method(outputs, info).total
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


@pytest.mark.parametrize(
    "name", ["hdc", "drml_pa", "dcml_mdw", "deml"]
)  # taps, relations, gates, crops
def test_its_model_is_exported_with_a_free_batch(name: str) -> None:
    model, _ = attached(name)
    pixels, _ = batch(name)
    free = ({0: torch.export.Dim("batch")},)
    exported = torch.export.export(model.eval(), (pixels[:2],), dynamic_shapes=free).module()
    torch.testing.assert_close(exported(pixels), model(pixels))
