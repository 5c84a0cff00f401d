"""DeepCluster: a worked example, its draws, and what an epoch begins with."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from cbml.data import ImageDataset, TrainTransform
from cbml.methods import DeepCluster
from cbml.methods.deep_cluster import balanced_draws
from cbml.methods.unlabeled import head_outputs
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Distributed, Settings, TrainingView, build_batches
from cbml.training.optimizers import build_optimizer
from tests.oracles.unlabeled import linear_softmax
from tests.training.small import CROP, embedder


def loss_of(
    h: torch.Tensor, y: list[int], weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    method = DeepCluster(num_classes=len(weight), embedding_size=weight.shape[1])
    method.weight.data.copy_(weight)
    method.bias.data.copy_(bias)
    labels = torch.tensor(y)
    outputs = Outputs(functional.normalize(h, dim=1), {"raw": h})
    return method(outputs, BatchInfo(labels, torch.zeros_like(labels))).total


def test_the_worked_example() -> None:
    h = torch.tensor([[1, 0], [0.8, 0.6], [0, 1]])
    loss = loss_of(h, [0, 0, 1], 0.5 * torch.eye(2), torch.tensor([0.1, -0.1]))
    assert loss.item() == pytest.approx(0.503966, abs=1e-6)


def test_plain_loops_agree_behind_the_relu() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(4, 3, generator=generator), torch.randn(4, generator=generator)
    h, y = torch.randn(6, 3, generator=generator), [3, 0, 1, 1, 2, 0]
    positive = [[max(value, 0.0) for value in row] for row in h.tolist()]
    expected = linear_softmax(positive, y, weight.tolist(), bias.tolist())
    assert loss_of(h, y, weight, bias).item() == pytest.approx(expected, rel=1e-5)


def test_draws_are_uniform_over_clusters_that_are_not_empty() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [3])
    counts = np.zeros(4)
    for seed in range(200):
        drawn = balanced_draws(labels, 10, np.random.default_rng(seed))
        assert len(drawn) == 10
        here = np.bincount(labels[drawn], minlength=4)
        assert here.max() <= 4, "four of each, then cut"
        first = drawn[labels[drawn] == 0]
        assert len(set(first.tolist())) == len(first), "a large cluster gives no image twice"
        counts += here
    assert counts[2] == 0
    np.testing.assert_allclose(counts[[0, 1, 3]] / 200, 10 / 3, atol=0.2)


def view_of(images: ImageDataset, epoch: int) -> TrainingView:
    model = embedder()
    model.preprocessing = model.preprocessing.with_crop(CROP)
    batches = build_batches(
        ImageDataset(images.paths), transform=TrainTransform(crop=CROP), samples_per_class=1
    )
    batches.sampler.epoch = epoch
    return TrainingView(model, batches, Distributed(), step=0, steps=10)


def test_each_epoch_draws_its_classifier_and_clusters_again(images: ImageDataset) -> None:
    method = DeepCluster(num_classes=6, embedding_size=8, seed=4)
    found = []
    for epoch in (0, 1, 0):
        method.bias.data.fill_(3.0)
        plan = method.before_epoch(view_of(images, epoch))
        assert plan.labels is not None
        assert plan.batches is not None
        assert not method.bias.any()
        found.append((method.weight.detach().clone(), plan.labels, plan.batches.indices))
    first, second, again = found
    same = zip(first, again, strict=True)
    assert all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in same)
    assert not torch.equal(first[0], second[0])
    assert not np.array_equal(first[1], second[1]), "other first centers"
    assert first[0].std().item() == pytest.approx(0.01, rel=0.3)
    assert first[2].size >= len(images), "as many draws as images"


def test_the_linear_layer_is_seen_before_the_division_by_its_length(images: ImageDataset) -> None:
    view = view_of(images, 0)
    vectors = torch.from_numpy(head_outputs(view.model, view.embed))
    unit = torch.from_numpy(view.embed())
    torch.testing.assert_close(functional.normalize(vectors, dim=1), unit, atol=1e-5, rtol=0)
    assert vectors.norm(dim=1).std().item() > 1e-3


def test_the_classifier_has_no_momentum() -> None:
    method = DeepCluster(num_classes=2, embedding_size=8)
    optimizer = build_optimizer(embedder(), method, Settings(optimizer="sgd"))
    momenta = {group["name"]: group["momentum"] for group in optimizer.param_groups}
    assert momenta == {"backbone": 0.9, "head": 0.9, "classifier": 0.0}


@pytest.mark.parametrize("option", ["components", "iterations"])
def test_impossible_options_are_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        DeepCluster(num_classes=2, embedding_size=2, **{option: 0})
