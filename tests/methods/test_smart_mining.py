"""Smart mining: its worked example, plain loops, its triplets, and what moves its window."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from cbml.data import ImageDataset
from cbml.errors import BadData
from cbml.methods import SmartMining
from cbml.methods.smart_mining import global_loss, mine_triplets, triplet_terms
from cbml.outputs import Outputs
from cbml.training import BatchInfo, TrainingView
from tests.methods.examples import labeled_view
from tests.oracles import stages
from tests.training.small import CLASSES, IMAGES, embedder

COUNT = CLASSES * IMAGES
LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 0])


def test_worked_example() -> None:
    near, far = torch.tensor([0.2, 0.5, 0.4]).double(), torch.tensor([0.3, 0.4, 0.9]).double()
    terms = triplet_terms(near, far, 0.01)
    assert terms.tolist() == pytest.approx([0, 0.215686, 0], abs=1e-6)
    assert float(terms.mean()) == pytest.approx(0.071895, abs=1e-6)
    found = global_loss(near / 4, far / 4, weight=0.8, threshold=0.4)
    assert float(found) == pytest.approx(0.291944, abs=1e-6)
    spread = global_loss(near / 4, far / 4, weight=0.0, threshold=0.4)
    assert float(spread) == pytest.approx(0.005278, abs=1e-6)


def outputs_of(seed: int) -> Outputs:
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
    return Outputs(functional.normalize(rows, dim=1))


def info(labels: torch.Tensor = LABELS) -> BatchInfo:
    return BatchInfo(labels, torch.arange(len(labels)))


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same(seed: int) -> None:
    outputs = outputs_of(seed)
    x = outputs.embeddings.tolist()
    near, far = ([stages.distance(x[i], x[i + k]) ** 2 for i in (0, 3, 6)] for k in (1, 2))
    method = SmartMining(global_weight=0.7)
    expected = stages.smart_loss(near, far, 0.01, 0.7, 0.8, 0.4)
    assert float(method(outputs, info()).total) == pytest.approx(expected, rel=1e-4)


def test_a_triplet_of_the_wrong_classes_is_left_out() -> None:
    outputs, method = outputs_of(0), SmartMining()
    labels = LABELS.clone()
    labels[5] = 1  # its negative is of the anchor's class
    kept = [0, 1, 2, 6, 7, 8]
    found = method(outputs, info(labels)).total
    expected = method(Outputs(outputs.embeddings[kept]), info(LABELS[kept])).total
    torch.testing.assert_close(found, expected)
    nobody = method(outputs, info(torch.zeros(9, dtype=torch.int64))).total
    assert float(nobody) == 0.0


def vectors(count: int = 30) -> np.ndarray:
    rows = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return functional.normalize(rows, dim=1).numpy()


def test_negatives_are_among_the_nearest_and_positives_farther_where_they_can_be() -> None:
    rows, labels = vectors(), np.arange(30) % 5
    similarity = rows @ rows.T
    generator = np.random.default_rng(0)
    for window in (0.01, 0.2, 0.5):
        triplets = mine_triplets(rows, labels, np.arange(30), window, generator)
        assert triplets[:, 0].tolist() == list(range(30))
        for anchor, positive, negative in triplets.tolist():
            others = np.flatnonzero(labels != labels[anchor])
            nearest = others[np.argsort(-similarity[anchor, others])]
            assert negative in nearest[: max(1, int(np.ceil(window * len(others))))]
            assert positive != anchor
            assert labels[positive] == labels[anchor]
            own = np.flatnonzero((labels == labels[anchor]) & (np.arange(30) != anchor))
            if (similarity[anchor, own] < similarity[anchor, negative]).any():
                assert similarity[anchor, positive] < similarity[anchor, negative]


def test_a_window_of_all_draws_negatives_alike() -> None:
    rows, labels = vectors(8), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    generator = np.random.default_rng(1)
    drawn = mine_triplets(rows, labels, np.zeros(4000, dtype=np.int64), 1.0, generator)[:, 2]
    counts = np.bincount(drawn, minlength=8) / 4000
    assert counts.tolist() == pytest.approx([0, 0] + [1 / 6] * 6, abs=0.03)


@pytest.mark.parametrize(
    ("active", "expected"), [(50, 0.1), (25, 0.05), (75, 0.15), (0, 0.05), (100, 0.2)]
)
def test_the_window_shrinks_where_too_few_triplets_teach(active: int, expected: float) -> None:
    method = SmartMining()
    method.seen.fill_(100)
    method.active.fill_(active)
    assert method._adapt() == active / 100
    assert float(method.window) == pytest.approx(expected)
    assert method._adapt() is None, "counted anew"
    assert float(method.window) == pytest.approx(expected)


def test_the_window_stays_within_bounds() -> None:
    method = SmartMining(window=1.0)
    for active, bound in ((10, 1.0), (0, 1e-6)):
        for _ in range(40):
            method.seen.fill_(10)
            method.active.fill_(active)
            method._adapt()
        assert float(method.window) == pytest.approx(bound)


def test_triplets_with_a_loss_are_counted(images: ImageDataset) -> None:
    method, outputs = SmartMining(), outputs_of(2)
    x = outputs.embeddings
    near, far = ((x[0::3] - x[k::3]).square().sum(dim=1) for k in (1, 2))
    for _ in range(2):
        method.after_step(view_at(images), outputs, info())
    assert int(method.seen) == 6
    assert int(method.active) == 2 * int((far < near + 0.01).sum())


def view_at(images: ImageDataset, epoch: int = 0) -> TrainingView:
    return labeled_view(images, embedder(), epoch=epoch)


def test_an_epoch_is_made_of_triplets(images: ImageDataset) -> None:
    method, labels = SmartMining(window=0.3), images.known_labels
    plan = method.before_epoch(view_at(images))
    assert plan.batches is not None
    assert plan.batches.indices.shape == (4, 12)
    triplets = plan.batches.indices.reshape(-1, 3)
    assert (labels[triplets[:, 0]] == labels[triplets[:, 1]]).all()
    assert (labels[triplets[:, 0]] != labels[triplets[:, 2]]).all()
    assert len(set(triplets[:, 0].tolist())) == len(triplets), "no anchor twice"
    again = SmartMining(window=0.3).before_epoch(view_at(images))
    assert again.batches is not None
    assert np.array_equal(again.batches.indices, plan.batches.indices)


def test_a_dataset_without_triplets_is_refused(images: ImageDataset) -> None:
    alone = ImageDataset(images.paths, np.arange(COUNT), tuple(map(str, range(COUNT))))
    with pytest.raises(BadData, match="needs two classes"):
        SmartMining().before_epoch(view_at(alone))


@pytest.mark.parametrize("option", ["margin", "window", "target"])
def test_what_cannot_be_meant_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        SmartMining(**{option: 0.0})
