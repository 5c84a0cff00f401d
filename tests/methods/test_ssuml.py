"""sSUML: a worked example, plain loops, its limits, and its triplets."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from cbml.data import ImageDataset, TrainTransform
from cbml.errors import BadData
from cbml.methods import SSUML
from cbml.methods.ssuml import random_triplets
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Distributed, TrainingView, build_batches
from tests.methods.linear import attached
from tests.oracles.unlabeled import synthetic_entropy
from tests.training.small import CROP, embedder

TRIPLET = ([1.0, 0.0], [0.0, 1.0], [0.6, 0.8])
SYNTHESIS = [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.5]]  # S'


def example(projection: list[list[float]]) -> SSUML:
    method = attached(SSUML(triplets=1), projection)
    method.synthesis = nn.Parameter(torch.tensor(SYNTHESIS))
    return method


def test_the_worked_example() -> None:
    odds, entropy = synthetic_entropy([TRIPLET], SYNTHESIS, [[1.0, 0.5]], 1.0)
    assert odds == pytest.approx([0.230381, 0.148421, 0.103732, 0.509374, 0.490626], abs=1e-6)
    assert sum(odds) == pytest.approx(1.482534, abs=1e-6)
    assert entropy == pytest.approx(1.549369, abs=1e-6)
    method = example([[1.0, 0.5]])
    rows = [torch.tensor([row]) for row in TRIPLET]
    assert method.entropy(*rows).item() == pytest.approx(1.549369, abs=1e-6)


def test_the_worked_objective() -> None:
    x, indices = torch.tensor(TRIPLET), torch.arange(3)
    method = example([[1.0, 0.5]])
    terms = method(Outputs(x, {"features": x}), BatchInfo(indices, indices)).terms
    assert terms["orthogonality"].item() == pytest.approx(0.0625, abs=1e-7)
    entropy = method.entropy(*(row[None] for row in x))
    total = entropy + method.orthogonality * terms["orthogonality"]
    assert total.item() == pytest.approx(1.580619, abs=1e-6)


def test_plain_loops_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    x = functional.normalize(torch.rand(7, 4, generator=generator), dim=1)
    projection = torch.randn(3, 4, generator=generator) / 2
    method = attached(SSUML(alpha=40.0, triplets=6, seed=5), projection.tolist())
    with torch.no_grad():
        method.synthesis.copy_(torch.randn(4, 8, generator=generator) / 2)
    indices = torch.arange(7)
    found = method(Outputs(x, {"features": x}), BatchInfo(indices, indices, step=3))
    chosen = random_triplets(7, 6, seed=5, step=3).tolist()
    triplets = [tuple(x[row].tolist() for row in rows) for rows in chosen]
    squared = torch.tan(torch.deg2rad(torch.tensor(40.0))).square().item()
    _, expected = synthetic_entropy(
        triplets, method.synthesis.tolist(), projection.tolist(), squared
    )
    assert found.terms["entropy"].item() == pytest.approx(expected, rel=1e-5)


def test_limits() -> None:
    odds, _ = synthetic_entropy([TRIPLET], SYNTHESIS, [[1.0, 0.5]], 1.0)
    assert odds[3] + odds[4] == pytest.approx(1)
    swapped, _ = synthetic_entropy(
        [(TRIPLET[0], TRIPLET[2], TRIPLET[1])], SYNTHESIS, [[1.0, 0.5]], 1.0
    )
    assert swapped[:2] == pytest.approx(odds[1::-1])
    identity, (one, two, three) = example([[1.0, 0.0], [0.0, 1.0]]), map(torch.tensor, TRIPLET)
    made, projected = identity._lengths(one[None], two[None], one[None], three[None])
    torch.testing.assert_close(made, projected)
    large = example([[1e4, 0.5]])
    rows = [torch.tensor([row]) for row in TRIPLET]
    assert large.entropy(*rows).isfinite()


def test_triplets_are_of_different_rows_and_each_step_has_its_own() -> None:
    found = random_triplets(5, 200, seed=1, step=2)
    assert found.shape == (200, 3)
    assert all(len(set(rows)) == 3 for rows in found.tolist())
    assert set(found[:, 0].tolist()) == set(range(5))
    assert torch.equal(found, random_triplets(5, 200, seed=1, step=2))
    assert not torch.equal(found, random_triplets(5, 200, seed=1, step=3))
    with pytest.raises(BadData, match="no triplets"):
        random_triplets(2, 10, seed=0, step=0)


def test_a_whitening_start_becomes_orthonormal(images: ImageDataset) -> None:
    model = embedder()
    model.preprocessing = model.preprocessing.with_crop(CROP)
    batches = build_batches(ImageDataset(images.paths), transform=TrainTransform(crop=CROP))
    method = SSUML(head_start="whitened")
    method.attach(model)
    method.start(TrainingView(model, batches, Distributed(), step=0, steps=1))
    x = torch.rand(5, method.projection.shape[1], generator=torch.Generator().manual_seed(0))
    terms = method(Outputs(x, {"features": x}), BatchInfo(torch.arange(5), torch.arange(5))).terms
    assert terms["orthogonality"].item() < 1e-6


def test_the_backbone_may_rest() -> None:
    assert SSUML().before_epoch(None) is None  # type: ignore[arg-type]
    plan = SSUML(train_network=False).before_epoch(None)  # type: ignore[arg-type]
    assert plan is not None
    assert plan.rest == {"backbone"}


@pytest.mark.parametrize("option", ["alpha", "triplets", "orthogonality"])
def test_impossible_options_are_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        SSUML(**{option: -1})
