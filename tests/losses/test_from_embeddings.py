"""Constants of the loss that follow from embeddings and labels."""

import numpy as np
import pytest
import torch

from cbml import CBMLLoss, PairStatistics
from cbml.errors import BadData
from cbml.losses.contrastive_bayesian import pair_moments


def clustered(count: int, dim: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    centers = torch.randn(classes, dim, generator=generator)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return centers[labels] + torch.randn(count, dim, generator=generator), labels * 7 - 3


@pytest.mark.parametrize(("count", "dim"), [(40, 6), (12, 30)])  # either side may be longer
def test_moments_are_those_of_all_pairs(count: int, dim: int) -> None:
    rows, labels = clustered(count, dim, 5)
    units = [row / row.norm() for row in rows.double()]
    pairs: dict[bool, list[float]] = {True: [], False: []}
    for i in range(count):
        for j in range(i):
            pairs[bool(labels[i] == labels[j])].append(float(units[i] @ units[j]))
    found = pair_moments(rows, labels)
    odds = len(pairs[True]) / len(pairs[False])
    expected = (np.mean(pairs[True]), np.mean(pairs[False]), np.std(pairs[False]), odds)
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_loss_is_the_one_that_the_statistics_suggest() -> None:
    rows, labels = clustered(60, 8, 6)
    expected = PairStatistics.of(rows, labels).suggest_loss()
    found = CBMLLoss.from_embeddings(rows, labels)
    assert vars(found.ratio) == pytest.approx(vars(expected.ratio), rel=1e-5)
    for name in ("positive_weight", "variance_weight", "target_mix"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-5)
    assert (found.delta, found.mining_margin) == (expected.delta, expected.mining_margin)
    lists = CBMLLoss.from_embeddings(rows.tolist(), labels.numpy())  # type: ignore[arg-type]
    assert vars(lists.ratio) == pytest.approx(vars(found.ratio), rel=1e-6)


@pytest.mark.parametrize(("classes", "margin"), [(33, 0.1), (36, None)])
def test_few_classes_are_trained_by_their_hard_pairs(classes: int, margin: float | None) -> None:
    labels = torch.arange(3 * classes) % classes
    generator = torch.Generator().manual_seed(classes)
    centers = torch.randn(classes, 16, generator=generator)
    rows = centers[labels] + torch.randn(3 * classes, 16, generator=generator)
    assert CBMLLoss.from_embeddings(rows, labels).mining_margin == margin
    statistics = PairStatistics.of(rows, labels)
    assert statistics.suggest_loss().mining_margin == margin
    assert statistics.loss_options(prior_odds=0.001)["mining_margin"] is None, "a part of all"
    assert statistics.loss_options("quadratic")["mining_margin"] is None


def test_embeddings_that_tell_nothing_are_refused() -> None:
    rows, labels = clustered(20, 4, 3)
    with pytest.raises(BadData, match="no positive pairs: 20 classes of 20"):
        CBMLLoss.from_embeddings(rows, torch.arange(20))
    with pytest.raises(BadData, match="no negative pairs"):
        CBMLLoss.from_embeddings(rows, torch.zeros(20, dtype=torch.int64))
    swapped = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
    with pytest.raises(BadData, match="check labels and model"):
        CBMLLoss.from_embeddings(swapped, torch.tensor([0, 0, 1, 1]))
    with pytest.raises(TypeError, match=r"numpy\.unique"):
        CBMLLoss.from_embeddings(rows, ["a"] * 20)  # type: ignore[arg-type]
    assert labels.dtype == torch.int64
