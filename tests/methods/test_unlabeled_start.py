"""Whitening: against scikit-learn, and as the start of the linear layer."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from cbml import QueryGallery, evaluate
from cbml.data import ImageDataset, PackedDataset
from cbml.methods.unlabeled import image_features, start_head, whitened
from cbml.training import embed_dataset
from tests.training.small import CROP, embedder


def test_whitening_agrees_with_scikit_learn() -> None:
    chance = np.random.default_rng(1)
    rows = (chance.standard_normal((100, 12)) @ chance.standard_normal((12, 12))).astype(np.float32)
    ours = whitened(rows, 5)
    theirs = PCA(5, whiten=True, svd_solver="full").fit_transform(rows.astype(np.float64))
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-5)
    assert whitened(rows, 99).shape == (100, 12)


def test_few_images_keep_their_neighbors() -> None:
    """Whitened in as many directions as there are images, each would be equally far from all."""
    chance = np.random.default_rng(2)
    labels = np.repeat(np.arange(10), 6)
    centers = chance.standard_normal((10, 200))
    rows = (centers[labels] + 0.3 * chance.standard_normal((60, 200))).astype(np.float32)
    assert whitened(rows, 128).shape == (60, 7)
    scores = evaluate(QueryGallery.of(whitened(rows, 128), labels)).metrics
    assert scores["recall@1"] > 0.9
    assert whitened(rows[:9], 128).shape == (9, 2), "two at least"


def test_rows_without_directions_stay_finite() -> None:
    assert np.isfinite(whitened(np.ones((4, 3), np.float32), 2)).all()
    odd = np.array([[1, 0], [-1, 0], [0, 0]], np.float32)  # the last is at the mean
    assert np.linalg.norm(whitened(odd, 2), axis=1) == pytest.approx([1, 1, 1])


def test_the_head_starts_by_whitening_the_images(images: ImageDataset) -> None:
    model = embedder("frozen_statistics")
    model.preprocessing = model.preprocessing.with_crop(CROP)
    dataset = PackedDataset.of(ImageDataset(images.paths), CROP)
    features = image_features(model, partial(embed_dataset, dataset=dataset))
    pixels = torch.stack([dataset.packed.sized(n, model.preprocessing.resize) for n in range(3)])
    framed = torch.stack([model.preprocessing.frame(image) for image in pixels])
    with torch.no_grad():
        direct = model.eval().features(model.preprocessing.normalize(framed))
    np.testing.assert_allclose(features[:3], direct.numpy(), rtol=1e-3, atol=1e-5)
    few = PackedDataset.of(ImageDataset(images.paths[:5]), CROP)
    start_head(model, partial(embed_dataset, dataset=few))
    assert int((model.head.weight != 0).any(dim=1).sum()) == 2, "five images have two directions"
    start_head(model, partial(embed_dataset, dataset=dataset))
    wanted = whitened(features, model.dim)
    found = embed_dataset(model, dataset)
    np.testing.assert_allclose(found[:, : wanted.shape[1]], wanted, atol=2e-3)
    assert not found[:, wanted.shape[1] :].any()
