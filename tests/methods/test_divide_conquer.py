"""Divide-Conquer: its worked example, plain loops, its phases, and its limits."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.data import ImageDataset
from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.methods import DivideConquer
from cbml.methods.divide_conquer import nearest_pairs
from cbml.methods.margin import distance_table
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, TrainingView
from tests.methods.examples import LABELS, labeled_view
from tests.methods.test_margin import listed
from tests.oracles import stages
from tests.training.small import CLASSES, IMAGES

RAW = torch.tensor([[3, 4, 1, 0], [4, 3, 0, 2], [0, 1, 1, 1], [-1, 1, 2, 1]]).double()
COUNT = CLASSES * IMAGES


def loss_of(method: DivideConquer, raw: Tensor, labels: Tensor, stream: int) -> Tensor:
    slices = raw.chunk(method.clusters, dim=1)
    parts = {f"slice_{k}": functional.normalize(part, dim=1) for k, part in enumerate(slices)}
    whole = functional.normalize(torch.cat([*parts.values()], dim=1), dim=1)
    found = method(Outputs(whole, parts), BatchInfo(labels, torch.arange(len(raw)), stream))
    total: Tensor = found.total
    return total


def test_worked_example() -> None:
    method = DivideConquer(num_images=4, clusters=2)
    assert float(loss_of(method, RAW, LABELS, 1)) == pytest.approx(0.532565, abs=1e-6)
    assert float(loss_of(method, RAW, LABELS, 0)) == pytest.approx(0.403528, abs=1e-6)
    rows = functional.normalize(RAW[:, :2], dim=1)
    _, negatives = nearest_pairs(distance_table(rows), LABELS, 0.5)
    assert listed(negatives) == [(0, 2), (1, 2), (2, 0), (3, 0)]


@pytest.mark.parametrize("seed", range(4))
def test_plain_loops_give_the_same(seed: int) -> None:
    """Also where an anchor has too few negatives beyond the near distance, or too few at all."""
    raw = torch.randn(9, 6, generator=torch.Generator().manual_seed(seed)).double() + 1.2
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 3] if seed % 2 else [0] * 6 + [1, 1, 2])
    method = DivideConquer(num_images=9, clusters=3, near=0.7)
    for stream in range(4):
        rows = raw[:, 2 * stream - 2 : 2 * stream] if stream else None
        unit = functional.normalize(rows, dim=1) if rows is not None else _whole(raw)
        pairs = stages.nearest_pairs(unit.tolist(), labels.tolist(), 0.7)
        expected = stages.margin(unit.tolist(), *pairs, [1.2] * 9, 0.2)
        assert float(loss_of(method, raw, labels, stream)) == pytest.approx(expected, rel=1e-6)


def _whole(raw: Tensor) -> Tensor:
    slices = [functional.normalize(part, dim=1) for part in raw.chunk(3, dim=1)]
    return torch.cat(slices, dim=1) / 3**0.5


def test_a_cluster_trains_its_slice_and_the_backbone_alone() -> None:
    method = DivideConquer(num_images=4, clusters=2)
    model = Embedder("conv4", dim=8, heads=method.heads(8), batch_norm="frozen_statistics")
    pixels = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    outputs = model.forward_outputs(pixels)
    cosines = [outputs.parts[f"slice_{k}"] @ outputs.parts[f"slice_{k}"].T for k in range(2)]
    mean = torch.stack(cosines).mean(dim=0)
    torch.testing.assert_close(outputs.embeddings @ outputs.embeddings.T, mean)
    method(outputs, BatchInfo(LABELS, torch.arange(4), stream=2)).total.backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None}
    assert {name for name in moved if name.startswith("head")} == {
        "head.slice_1.0.weight",
        "head.slice_1.0.bias",
    }
    assert any(name.startswith("backbone") for name in moved)


def test_one_cluster_is_the_plain_margin_loss() -> None:
    method = DivideConquer(num_images=4, clusters=1)
    rows = functional.normalize(RAW, dim=1)
    positives, negatives = nearest_pairs(distance_table(rows), LABELS, 0.5)
    given = (positives.anchors, positives.others, negatives.anchors, negatives.others)
    expected = float(LOSSES["margin"](beta=1.2)(rows, LABELS, given).detach())
    for stream in range(2):
        assert float(loss_of(method, RAW, LABELS, stream)) == pytest.approx(expected, abs=1e-6)


def view_at(
    images: ImageDataset, method: DivideConquer, epoch: int, step: int, dim: int = 8
) -> TrainingView:
    model = Embedder("conv4", dim=dim, heads=method.heads(dim), seed=1)
    return labeled_view(images, model, epoch=epoch, step=step)


def test_three_phases_share_the_run(images: ImageDataset) -> None:
    method = DivideConquer(num_images=COUNT, clusters=2)
    plan = method.before_epoch(view_at(images, method, 0, 0))
    assert plan is not None
    assert plan.batches is not None
    assert plan.batches.streams is not None
    clusters, labels = method.cluster_of.numpy(), images.known_labels
    assert set(plan.batches.streams.tolist()) == {1, 2}
    for stream, batch in zip(plan.batches.streams, plan.batches.indices, strict=True):
        assert set(clusters[batch]) == {stream - 1}, "all from one cluster"
        assert len(batch) == 12
        assert np.bincount(labels[batch]).max() > 1
    first = clusters.copy()
    plan = method.before_epoch(view_at(images, method, 1, 39))
    assert plan is not None
    assert plan.batches is not None
    assert len(plan.batches.indices) == 1, "the phase ends with step 40 of 100"
    assert np.array_equal(method.cluster_of.numpy(), first), "clusters stay for two epochs"
    plan = method.before_epoch(view_at(images, method, 2, 40))
    assert plan is not None
    assert plan.batches is not None
    assert plan.batches.streams is None
    assert all(len(set(method.cluster_of.numpy()[batch])) == 1 for batch in plan.batches.indices)
    assert method.before_epoch(view_at(images, method, 3, 95)) is None


def test_clusters_keep_their_numbers(images: ImageDataset) -> None:
    method = DivideConquer(num_images=COUNT, clusters=3, every=1)
    method.before_epoch(view_at(images, method, 0, 0))
    first = method.cluster_of.clone()
    method.cluster_of.copy_((first + 1) % 3)
    method.before_epoch(view_at(images, method, 0, 1))
    assert torch.equal(method.cluster_of, (first + 1) % 3)


def test_too_many_clusters_are_refused() -> None:
    method = DivideConquer(num_images=COUNT, clusters=3)
    method.check_images(np.array([6, 6, 1]))
    for sizes in ([6, 5, 1], [12, 1, 1]):  # too few images that are not alone; one class
        with pytest.raises(BadData, match=r"need 12 images .* there are 1[12]; use fewer"):
            method.check_images(np.array(sizes))


def test_an_epoch_without_a_useful_cluster_trains_the_whole_embedding(
    images: ImageDataset,
) -> None:
    """Clusters that are classes have nothing to tell apart; a run must not end for that."""
    method = DivideConquer(num_images=COUNT, clusters=6)
    method.cluster_of.copy_(torch.tensor(images.known_labels.tolist()))
    plan = method.before_epoch(view_at(images, method, 1, 0, dim=12))
    assert plan is not None
    assert plan.batches is None
    assert plan.metadata == {"clusters": 6, "used": 0, "divides": False}
    assert "no cluster has two images of two classes" in plan.text


def test_the_layer_starts_as_in_the_program(images: ImageDataset) -> None:
    method = DivideConquer(num_images=COUNT, clusters=2)
    model = Embedder("conv4", dim=512, heads=method.heads(512), seed=1)
    method.start(labeled_view(images, model))
    for k in range(2):
        layer = model.get_submodule(f"head.slice_{k}.0")
        weight, bias = (layer.get_parameter(name).detach() for name in ("weight", "bias"))
        assert float(weight.std()) == pytest.approx((2 / (64 + 256)) ** 0.5, rel=0.05)
        assert float(bias.abs().max()) == pytest.approx(1 / 8, rel=0.1)


def test_widths_are_rounded_up_and_the_last_takes_the_rest() -> None:
    method = DivideConquer(num_images=4, clusters=3)
    assert [head.dim for head in method.heads(16)] == [6, 6, 4]
    with pytest.raises(BadData, match="dim 5: cannot be cut into 4"):
        DivideConquer(num_images=4, clusters=4).heads(5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 0}, "clusters"),
        ({"every": 0.5}, "every"),
        ({"divide_until": 1.1}, "divide_until"),
        ({"divide_until": 0.5, "cluster_until": 0.4}, "cluster_until"),
        ({"beta": 0.0}, "beta"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        DivideConquer(num_images=4, **options)
