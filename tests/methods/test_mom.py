"""MOM: a worked example, plain loops, pools, and triplets."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from cbml.data import ImageDataset, TrainTransform
from cbml.errors import BadData
from cbml.methods import MOM
from cbml.methods.mom import Mining, diffuse, manifold_graph, mine
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Distributed, TrainingView, build_batches
from tests.oracles.unlabeled import manifold_pools, weighted_triplets
from tests.training.small import CROP, embedder

ANGLES = np.radians([0, 20, 40, 60, 80, -35, -55])
VECTORS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype(np.float32)
F5 = [15.272948, 15.694452, 14.953953, 14.515554, 10.161406, 17.115651, 13.141886]


def small(length: int) -> Mining:
    return Mining(neighbors=3, positive_list=length, negative_list=length)


def test_the_worked_graph() -> None:
    graph = manifold_graph(VECTORS, 3).toarray()
    degrees = np.array([1.379428, 1.659538, 1.659538, 1.659538, 0.829769, 1.379428, 0.829769])
    strengths = graph * np.sqrt(degrees[:, None] * degrees[None, :])
    expected = np.zeros((7, 7))
    for i, j in ((0, 1), (1, 2), (2, 3), (3, 4), (5, 6)):
        expected[i, j] = expected[j, i] = 0.829769
    expected[0, 5] = expected[5, 0] = 0.549659
    np.testing.assert_allclose(strengths, expected, atol=2e-6)
    found = diffuse(manifold_graph(VECTORS, 3), np.array([5]), 0.99)
    np.testing.assert_allclose(found[0], F5, rtol=1e-6)


def test_the_worked_pools_and_loss() -> None:
    positives, weights, negatives = mine(VECTORS, small(3))
    assert positives[5, :2].tolist() == [1, -1]
    assert negatives[5, :2].tolist() == [6, -1]
    assert weights[5, 0] == pytest.approx(15.694452, rel=1e-6)
    four = mine(VECTORS, small(4))
    assert four[0][0, 0] == four[2][0, 0] == -1, "both pools of anchor 0 are empty"
    method = MOM(num_images=7)
    method.positives.copy_(torch.from_numpy(positives))
    method.weights.copy_(torch.from_numpy(weights))
    method.negatives.copy_(torch.from_numpy(negatives))
    indices = torch.tensor([5, 1, 6])
    rows = torch.from_numpy(VECTORS[[5, 1, 6]])
    loss = method(Outputs(rows), BatchInfo(indices, indices)).total
    assert loss.item() == pytest.approx(19.339212, rel=1e-6)
    stranger = torch.tensor([5, 2, 6])
    assert method(Outputs(rows), BatchInfo(stranger, stranger)).total.item() == 0


def test_plain_loops_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = functional.normalize(torch.randn(24, 3, generator=generator), dim=1).numpy()
    mining = Mining(neighbors=6, positive_list=7, negative_list=9, pool=4)
    positives, weights, negatives = mine(vectors, mining)
    assert (positives >= 0).any()
    assert (negatives >= 0).any()
    for anchor in range(24):
        up, f, down = manifold_pools(vectors.tolist(), anchor, 6, 0.99, 7, 9, 4)
        assert positives[anchor][positives[anchor] >= 0].tolist() == up
        assert negatives[anchor][negatives[anchor] >= 0].tolist() == down
        np.testing.assert_allclose(weights[anchor, : len(up)], [f[j] for j in up], rtol=1e-5)


def test_f_is_symmetric_and_a_short_walk_leaves_no_pools() -> None:
    everyone = diffuse(manifold_graph(VECTORS, 3), np.arange(7), 0.99)
    np.testing.assert_allclose(everyone, everyone.T, atol=1e-9)
    # On a complete graph a walk of hardly any length ranks as the similarities of equal degrees do.
    ring = np.radians(np.arange(0, 360, 60) + 0.0)
    vectors = np.stack([np.cos(ring), np.sin(ring), np.full(6, 2.0)], axis=1)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    mining = Mining(neighbors=6, diffusion=1e-6, positive_list=4, negative_list=4)
    positives, _, negatives = mine(vectors, mining)
    assert (positives == -1).all()
    assert (negatives == -1).all()


def test_a_vector_without_mutual_neighbors_has_empty_pools() -> None:
    far = np.concatenate([VECTORS, [[-1.0, 0.0]]]).astype(np.float32)
    positives, weights, negatives = mine(far, small(3))
    assert (positives[7] == -1).all()
    assert (negatives[7] == -1).all()
    assert not weights[7].any()


def test_the_loss_in_plain_loops() -> None:
    generator = torch.Generator().manual_seed(1)
    x = functional.normalize(torch.randn(9, 4, generator=generator), dim=1)
    method = MOM(num_images=9, pool=1, margin=0.3)
    method.positives[:, 0] = torch.tensor([1, -1, -1, 4, -1, -1, 7, -1, -1])
    method.negatives[:, 0] = torch.tensor([2, -1, -1, 5, -1, -1, 8, -1, -1])
    method.weights[:, 0] = torch.rand(9, generator=generator)
    indices = torch.arange(9)
    found = method(Outputs(x), BatchInfo(indices, indices)).total.item()
    weights = method.weights[[0, 3, 6], 0].tolist()
    assert found == pytest.approx(weighted_triplets(x.tolist(), weights, 0.3), rel=1e-5)


def view_of(images: ImageDataset) -> TrainingView:
    model = embedder()
    model.preprocessing = model.preprocessing.with_crop(CROP)
    batches = build_batches(
        ImageDataset(images.paths),
        transform=TrainTransform(crop=CROP),
        samples_per_class=1,
        batch_range=(13, 13),
    )
    return TrainingView(model, batches, Distributed(), step=0, steps=10)


def test_triplets_come_from_the_pools_and_negatives_are_the_nearest(images: ImageDataset) -> None:
    view = view_of(images)
    method = MOM(num_images=42, neighbors=5, positive_list=5, negative_list=12, hardest=2)
    method.start(view)
    plan = method.before_epoch(view)
    assert plan.batches is not None
    assert plan.batches.indices.shape == (4, 12)
    embeddings = view.embed()
    for anchor, positive, negative in plan.batches.indices.reshape(-1, 3).tolist():
        assert positive in method.positives[anchor].tolist()
        pool = [j for j in method.negatives[anchor].tolist() if j >= 0]
        nearest = sorted(pool, key=lambda j: -float(embeddings[j] @ embeddings[anchor]))
        assert negative in nearest[:2]


def test_lists_as_long_as_the_dataset_are_refused(images: ImageDataset) -> None:
    view = view_of(images)
    method = MOM(num_images=42)
    method.start(view)
    with pytest.raises(BadData, match="positive_list"):
        method.before_epoch(view)


@pytest.mark.parametrize("option", ["hardest", "neighbors", "pool", "diffusion"])
def test_impossible_options_are_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        MOM(num_images=3, **{option: -1})
