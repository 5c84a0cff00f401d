"""Ortho: a worked example, plain loops, its limits, clusters of the graph and the linear layer."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cbml.data import ImageDataset, TrainTransform
from cbml.errors import BadData
from cbml.methods import Ortho
from cbml.methods.ortho import graph_modes, semi_hard
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Distributed, TrainingView, build_batches
from tests.methods.linear import attached
from tests.oracles.unlabeled import angular_probability, semi_hard_triplets
from tests.training.small import CROP, embedder


def loss_of(method: Ortho, x: torch.Tensor, labels: list[int]) -> torch.Tensor:
    indices = torch.arange(len(x))
    outputs = Outputs(x, {"features": x})
    total: torch.Tensor = method(outputs, BatchInfo(torch.tensor(labels), indices)).total
    return total


def example() -> Ortho:
    method = attached(Ortho(margin=2.0), [[0.6, 0.8]])
    method.weighing = nn.Parameter(torch.tensor([[1.0], [0.5]]))
    return method


def test_the_worked_example() -> None:
    x = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
    value = angular_probability(x, [(0, 1, 2)], [[1.0], [0.5]], [[0.6, 0.8]], 1.0)
    assert value == pytest.approx(0.928593, abs=1e-6)
    rows = torch.tensor([[0], [1], [2]])
    found = example().triplet_loss(torch.tensor(x), *rows)
    assert found.item() == pytest.approx(0.928593, abs=1e-6)


@pytest.mark.parametrize("alpha", [35.0, 45.0])
def test_plain_loops_agree(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = functional.normalize(torch.rand(9, 5, generator=generator), dim=1)
    projection = torch.linalg.qr(torch.randn(5, 3, generator=generator)).Q.T
    method = attached(Ortho(alpha=alpha), projection.tolist())
    labels = [0, 0, 1, 1, 2, 2, 0, 3, 1]
    triplets = semi_hard_triplets(x.tolist(), labels, projection.tolist(), 0.5)
    assert triplets
    found = semi_hard(x @ projection.T, torch.tensor(labels), 0.5)
    assert list(zip(*(each.tolist() for each in found), strict=True)) == triplets
    expected = angular_probability(
        x.tolist(),
        triplets,
        method.weighing.tolist(),
        projection.tolist(),
        math.tan(math.radians(alpha)) ** 2,
    )
    assert loss_of(method, x, labels).item() == pytest.approx(expected, rel=1e-5)


def test_turning_the_columns_changes_nothing_and_the_loss_is_at_least_log_2() -> None:
    generator = torch.Generator().manual_seed(1)
    x = functional.normalize(torch.rand(8, 5, generator=generator), dim=1)
    labels = [0, 0, 1, 1, 2, 2, 0, 1]
    method = attached(Ortho(), torch.linalg.qr(torch.randn(5, 2, generator=generator)).Q.T.tolist())
    before = loss_of(method, x, labels)
    turn = torch.tensor([[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]])
    with torch.no_grad():
        method.projection.copy_(turn @ method.projection)
    torch.testing.assert_close(loss_of(method, x, labels), before)
    assert before.item() > math.log(2)


def test_the_features_get_no_gradient_from_the_weights_and_no_triplets_mean_zero() -> None:
    x = torch.tensor([[1, 0], [0.8, 0.6], [0.9, 0.1]]).requires_grad_()
    alone = loss_of(example(), x, [0, 1, 2])
    alone.backward()
    assert alone.item() == 0
    assert x.grad is not None
    assert not x.grad.any()


def test_everyone_climbs_to_the_mode_of_his_hill() -> None:
    angles = np.radians([0, 4, 8, 12, 90, 94, 98, 102])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert graph_modes(vectors, 2).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert graph_modes(vectors[:1], 2).tolist() == [0]
    order = np.random.default_rng(0).permutation(8)
    found = graph_modes(vectors[order], 2)
    assert len({(place < 4, label) for place, label in zip(order, found, strict=True)}) == 2


def test_clusters_are_found_once_and_the_layer_stays_orthonormal(images: ImageDataset) -> None:
    model = embedder()
    model.preprocessing = model.preprocessing.with_crop(CROP)
    batches = build_batches(
        ImageDataset(images.paths), transform=TrainTransform(crop=CROP), batch_range=(20, 20)
    )
    view = TrainingView(model, batches, Distributed(), step=0, steps=10)
    method = Ortho(neighbors=3, head_start="whitened")
    method.attach(model)
    method.start(view)
    torch.testing.assert_close(
        method.projection @ method.projection.T, torch.eye(8), atol=1e-5, rtol=0
    )
    plan = method.before_epoch(view)
    assert plan.labels is not None
    assert 1 < plan.metadata["clusters"] < 42
    assert plan.batches is not None
    assert sorted(set(plan.batches.indices.ravel().tolist())) == list(range(42))
    batches.relabel(plan.labels)
    assert method.before_epoch(view).labels is None
    with torch.no_grad():
        method.projection.mul_(3).add_(0.1)
    outputs = Outputs(torch.zeros(1, 8))
    method.after_step(view, outputs, BatchInfo(torch.zeros(1), torch.zeros(1)))
    torch.testing.assert_close(
        method.projection @ method.projection.T, torch.eye(8), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(model.head.bias, -method.projection @ method.center)


def test_one_cluster_of_all_is_refused(images: ImageDataset) -> None:
    model = embedder()
    model.preprocessing = model.preprocessing.with_crop(CROP)
    batches = build_batches(
        ImageDataset(images.paths), transform=TrainTransform(crop=CROP), batch_range=(20, 20)
    )
    method = Ortho(neighbors=41)
    method.attach(model)
    with pytest.raises(BadData, match=r"method\.neighbors"):
        method.before_epoch(TrainingView(model, batches, Distributed(), step=0, steps=10))


@pytest.mark.parametrize("option", ["alpha", "margin", "neighbors"])
def test_impossible_options_are_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        Ortho(**{option: -1})
