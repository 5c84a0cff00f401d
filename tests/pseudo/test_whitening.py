"""Whitening: against scikit-learn, and as the start of the linear layer."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from cbml.data import ImageSet
from cbml.pseudo.whitening import picture_features, start_head, whitened
from cbml.training import Team
from cbml.training.assembly import Shelf
from tests.training.small import CROP, embedder


def test_whitening_agrees_with_scikit_learn() -> None:
    chance = np.random.default_rng(1)
    rows = (chance.standard_normal((80, 12)) @ chance.standard_normal((12, 12))).astype(np.float32)
    ours = whitened(rows, 5)
    theirs = PCA(5, whiten=True, svd_solver="full").fit_transform(rows.astype(np.float64))
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-5)
    assert whitened(rows, 99).shape == (80, 12)


def test_rows_without_directions_stay_finite() -> None:
    assert np.isfinite(whitened(np.ones((4, 3), np.float32), 2)).all()
    odd = np.array([[1, 0], [-1, 0], [0, 0]], np.float32)  # the last is at the mean
    assert np.linalg.norm(whitened(odd, 2), axis=1) == pytest.approx([1, 1, 1])


def test_the_head_starts_by_whitening_the_pictures(images: ImageSet) -> None:
    model = embedder("frozen_statistics")
    model.preprocessing = model.preprocessing.with_crop(CROP)
    shelf = Shelf.of(ImageSet(images.paths), CROP)
    features = picture_features(model, shelf, Team())
    pixels = torch.stack([shelf.packed.sized(n, model.preprocessing.resize) for n in range(3)])
    framed = torch.stack([model.preprocessing.frame(picture) for picture in pixels])
    with torch.no_grad():
        direct = model.eval().features(model.preprocessing.normalise(framed))
    np.testing.assert_allclose(features[:3], direct.numpy(), rtol=1e-3, atol=1e-5)
    few = Shelf.of(ImageSet(images.paths[:5]), CROP)
    start_head(model, few, Team())
    assert int((model.head.weight != 0).any(dim=1).sum()) == 4, "five pictures differ in four ways"
    start_head(model, shelf, Team())
    np.testing.assert_allclose(shelf.embedded(model), whitened(features, model.dim), atol=2e-3)
