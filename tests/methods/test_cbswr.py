"""CBSwR: worked examples, plain loops, its limits, and the decoder's pixels."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional

from cbml.methods import CBSwR
from cbml.methods.cbswr import center_softmax, information
from cbml.outputs import Outputs
from cbml.training import BatchInfo
from tests.oracles import unlabeled as oracle
from tests.training.small import CROP, embedder

X = torch.tensor([[1, 0], [0, 1], [0.8, 0.6], [-0.6, 0.8]])
Y = torch.tensor([0, 1, 0, 1])
CENTERS = torch.tensor([[0.96, 0.28], [-0.28, 0.96]])


@pytest.mark.parametrize(("own", "value"), [(True, 0.622491), (False, -1.436754)])
def test_the_worked_metric_term(own: bool, value: float) -> None:
    found = center_softmax(X, Y, CENTERS, Y, temperature=0.5, own_cluster=own)
    assert found.item() == pytest.approx(value, abs=1e-6)


def test_the_worked_clustering_term() -> None:
    y = [[0.6, 0.8], [1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
    given, whole = oracle.information(y)
    assert (given, whole) == pytest.approx((0.458191, 1.0), abs=1e-6)
    assert information(torch.tensor(y)).item() == pytest.approx(0.458191, abs=1e-6)


@pytest.mark.parametrize("own", [True, False])
def test_plain_loops_agree(own: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = functional.normalize(torch.randn(8, 5, generator=generator), dim=1)
    centers = functional.normalize(torch.randn(3, 5, generator=generator), dim=1)
    labels, clusters = [5, 2, 2, 0, 5, 1, 0, 1], [0, 2, 2, 1, 0, 1, 1, 1]
    found = center_softmax(
        x,
        torch.tensor(labels),
        centers,
        torch.tensor(clusters),
        temperature=0.2,
        own_cluster=own,
    )
    expected = oracle.center_softmax(x.tolist(), labels, centers.tolist(), clusters, 0.2, own)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    scores = functional.normalize(torch.randn(6, 4, generator=generator), dim=1)
    given, whole = oracle.information(scores.tolist())
    assert information(scores).item() == pytest.approx(given + 1 - whole, rel=1e-5)


def test_one_cluster_and_a_center_on_a_row_stay_finite() -> None:
    for own in (True, False):
        x = X.clone().requires_grad_()
        alone = torch.zeros(4, dtype=torch.int64)
        loss = center_softmax(x, Y, CENTERS[:1], alone, temperature=0.02, own_cluster=own)
        loss.backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        on_it = center_softmax(x, Y, X[:2], 1 - Y, temperature=0.01, own_cluster=own)
        assert math.isfinite(on_it.item())


def outputs_of(method: CBSwR, scale: float = 1 / 255) -> tuple[Outputs, torch.Tensor]:
    model = embedder()
    plain = model.preprocessing.with_crop(CROP)
    model.preprocessing = dataclasses.replace(plain, scale=scale)
    method.attach(model)
    pixels = torch.randint(0, 256, (6, 3, CROP, CROP), generator=torch.Generator().manual_seed(0))
    expected = model.preprocessing
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (expected.mean, expected.std))
    images = (pixels * expected.scale - mean) / std
    found = model.forward_outputs(images, method.parts)
    return found.with_parts(method.teach(images)), pixels / 255


@pytest.mark.parametrize("scale", [1 / 255, 1.0])
def test_the_decoder_is_asked_for_pixels_between_zero_and_one(scale: float) -> None:
    method = CBSwR(embedding_size=8, batch_clusters=3)
    outputs, pixels = outputs_of(method, scale)
    torch.testing.assert_close(outputs.parts["pixels"], pixels)
    labels = torch.arange(3).repeat_interleave(2)
    step = method(outputs, BatchInfo(labels, labels))
    assert set(step.terms) == {"metric", "clustering", "reconstruction"}
    weighted = sum(method.weights[name] * term for name, term in step.terms.items())
    torch.testing.assert_close(step.total, weighted)
    assert 0 < step.terms["reconstruction"].item() < 1


def test_without_reconstruction_there_is_no_decoder() -> None:
    method = CBSwR(embedding_size=8, batch_clusters=3, reconstruction_weight=0.0)
    outputs, _ = outputs_of(method)
    assert set(outputs.parts) == {"features"}
    labels = torch.arange(3).repeat_interleave(2)
    assert set(method(outputs, BatchInfo(labels, labels)).terms) == {"metric", "clustering"}


def test_a_batch_in_one_cluster_can_be_rebuilt() -> None:
    method = CBSwR(embedding_size=8, batch_clusters=3)
    outputs, _ = outputs_of(method)
    with torch.no_grad():
        method.classifier.weight.zero_()
        method.classifier.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
    labels = torch.arange(3).repeat_interleave(2)
    step = method(outputs, BatchInfo(labels, labels))
    step.total.backward()
    assert all(term.isfinite() for term in step.terms.values())


def test_dropout_follows_from_the_step() -> None:
    method = CBSwR(embedding_size=2, batch_clusters=3)
    first, again, other = (method.scores(X, step) for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("option", ["temperature", "batch_clusters", "metric_weight"])
def test_impossible_options_are_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        CBSwR(embedding_size=2, **{option: -1})
