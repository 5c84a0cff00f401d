"""ISIF: a worked example, plain loops, its limits, and neighbors as second views."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.data import ImageDataset, TrainTransform
from cbml.losses import build_loss
from cbml.methods import InstanceSpreading
from cbml.methods.unlabeled import image_features
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Distributed, StepLoss, TrainingView, build_batches
from tests.oracles.unlabeled import instance_spreading
from tests.training.small import CROP, embedder

X = torch.tensor([[1, 0], [0, 1], [0.8, 0.6], [-0.6, 0.8]])
Y = torch.tensor([0, 1, 0, 1])


def step_of(method: InstanceSpreading, x: Tensor, y: Tensor) -> StepLoss:
    found: StepLoss = method(Outputs(x), BatchInfo(y, y))
    return found


def test_the_worked_example() -> None:
    x = X.clone().requires_grad_()
    found = step_of(InstanceSpreading(temperature=0.5), x, Y)
    assert found.total.item() == pytest.approx(0.820646, abs=1e-6)
    assert found.terms["invariance"].item() == pytest.approx(0.430190, abs=1e-6)
    assert found.terms["spreading"].item() == pytest.approx(0.390456, abs=1e-6)
    found.total.backward()
    expected = [
        [-0.185684, 0.071054],
        [0.595382, -0.129493],
        [-0.460824, 0.398610],
        [0.168253, -0.105914],
    ]
    torch.testing.assert_close(x.grad, torch.tensor(expected), atol=1e-6, rtol=0)
    other = X.clone().requires_grad_()
    step_of(InstanceSpreading(temperature=0.5, detach=False), other, Y).total.backward()
    assert other.grad is not None
    row = torch.tensor([-0.543160, -0.064817])
    torch.testing.assert_close(other.grad[0], row, atol=1e-6, rtol=0)


def test_its_first_term_is_nt_xent() -> None:
    nt_xent = build_loss("nt_xent", {"temperature": 0.5}, classes=2, dim=2, seed=0)
    found = step_of(InstanceSpreading(temperature=0.5), X, Y).terms["invariance"]
    torch.testing.assert_close(found, nt_xent(X, Y))


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_plain_loops_agree(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = functional.normalize(torch.randn(8, 5, generator=generator), dim=1)
    y = torch.tensor([5, 2, 2, 0, 5, 1, 0, 1])
    terms = step_of(InstanceSpreading(temperature=temperature), x, y).terms
    expected = instance_spreading(x.tolist(), y.tolist(), temperature)
    found = (terms["invariance"].item(), terms["spreading"].item())
    assert found == pytest.approx(expected, rel=1e-4)


def test_limits() -> None:
    pair = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).requires_grad_()
    alone = step_of(InstanceSpreading(), pair, torch.tensor([3, 3])).total
    alone.backward()
    assert alone.item() == pytest.approx(0, abs=1e-6)
    assert pair.grad is not None
    assert pair.grad.isfinite().all()
    labels = torch.arange(64).repeat(2)
    collapsed = step_of(InstanceSpreading(), torch.ones(128, 1), labels).total
    assert collapsed.item() == pytest.approx(5.840240, abs=1e-5)
    assert collapsed.item() == pytest.approx(math.log(127) - 126 * math.log(1 - 1 / 127), abs=1e-5)
    spread = step_of(InstanceSpreading(), torch.eye(64).repeat(2, 1), labels).total
    assert spread.item() == pytest.approx(0.011392, abs=1e-6)


def test_a_duplicate_image_costs_much_but_not_infinity() -> None:
    x = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0]]).requires_grad_()
    loss = step_of(InstanceSpreading(temperature=0.02), x, Y).total  # the twin is another image
    loss.backward()
    assert math.isfinite(loss.item())
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_neighbors_take_second_places_and_keep_the_label(images: ImageDataset) -> None:
    model = embedder()
    model.preprocessing = model.preprocessing.with_crop(CROP)
    batches = build_batches(
        ImageDataset(images.paths),
        transform=TrainTransform(crop=CROP),
        samples_per_class=2,
        batch_range=(20, 20),
    )
    view = TrainingView(model, batches, Distributed(), step=0, steps=10)
    assert InstanceSpreading().before_epoch(view) is None
    plan = InstanceSpreading(neighbor_probability=1.0).before_epoch(view)
    assert plan is not None
    assert plan.batches is not None
    assert plan.batches.labels is not None
    features = image_features(model, view.embed)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarities = unit @ unit.T
    np.fill_diagonal(similarities, -2)
    own, shown = plan.batches.labels, plan.batches.indices
    assert np.array_equal(own[:, 0::2], own[:, 1::2])
    assert np.array_equal(shown[:, 0::2], own[:, 0::2])
    chosen = similarities[own[:, 1::2], shown[:, 1::2]]
    np.testing.assert_allclose(chosen, similarities.max(axis=1)[own[:, 1::2]], atol=1e-5)
    half = InstanceSpreading(neighbor_probability=0.5).before_epoch(view)
    assert half is not None
    assert half.batches is not None
    assert 0.3 < float((half.batches.indices != own)[:, 1::2].mean()) < 0.7


@pytest.mark.parametrize("option", ["temperature", "neighbor_probability"])
def test_impossible_options_are_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        InstanceSpreading(**{option: -1.0})
