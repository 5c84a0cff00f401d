"""D & C: its worked examples, its draws, how clusters and masks grow, and its limits."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.data import ImageDataset
from cbml.methods import DivideConquer, MaskedDivideConquer
from cbml.methods.divide_conquer import nearest_pairs
from cbml.methods.margin import Draws, distance_table, margin_loss
from cbml.methods.masked_divide_conquer import (
    find_clusters,
    mask_overlap,
    split_clusters,
    weighted_pairs,
)
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Settings, TrainingView
from cbml.training.optimizers import build_optimizer
from tests.methods.examples import LABELS, labeled_view
from tests.methods.test_divide_conquer import RAW
from tests.methods.test_margin import info, listed
from tests.oracles import stages
from tests.training.small import CLASSES, IMAGES, embedder

COUNT = CLASSES * IMAGES


def made(**options: object) -> MaskedDivideConquer:
    chosen = {"num_images": COUNT, "embedding_size": 8, "clusters": 4, **options}
    return MaskedDivideConquer(**chosen)


def outputs_of(raw: Tensor) -> Outputs:
    return Outputs(functional.normalize(raw, dim=1), {"raw": raw})


class Kept(MaskedDivideConquer):
    """Keeps the rows that it would compare."""

    def _margin(self, rows: Tensor, batch: BatchInfo) -> Tensor:
        self.rows = rows
        return super()._margin(rows, batch)


def test_worked_example() -> None:
    masks = torch.tensor([[1, 0.5, -0.2, 0.8], [0.2, 1, 0.6, 0]])
    assert float(mask_overlap(masks.relu())) == pytest.approx(0.430331, abs=1e-6)
    three = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 1, 1]])
    assert float(mask_overlap(three)) == pytest.approx(0.402369, abs=1e-6)
    method = Kept(num_images=2, embedding_size=4, clusters=2)
    method.masks[1].data.copy_(masks)
    expected = {
        2: (0.615457, 0.615457, 0, -0.492366),
        3: (0.074125, 0.741249, 0.667124, 0),
        0: (0.258199, 0.516398, 0.774597, -0.258199),
    }
    raw = torch.tensor([[1.0, 2, 3, -1], [1, 0, 0, 2]])
    for stream, row in expected.items():
        method(outputs_of(raw), BatchInfo(torch.tensor([0, 1]), torch.arange(2), stream))
        assert method.rows[0].tolist() == pytest.approx(row, abs=1e-6)


def test_overlap_agrees_with_plain_loops_and_knows_no_length() -> None:
    masks = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)) + 0.5
    found = float(mask_overlap(masks.relu()))
    assert found == pytest.approx(stages.overlap(masks.tolist()), rel=1e-5)
    masks[2] *= 7.0
    assert float(mask_overlap(masks.relu())) == pytest.approx(found, rel=1e-5)
    assert float(mask_overlap(masks[:1].relu())) == 0.0


def test_the_loss_is_the_margin_of_the_drawn_pairs_and_the_overlap() -> None:
    raw = torch.randn(9, 8, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    method = Kept(num_images=9, embedding_size=8, clusters=2, overlap_weight=0.5)
    method.masks[1].data.copy_(torch.randn(2, 8, generator=torch.Generator().manual_seed(4)))
    batch = BatchInfo(labels, torch.arange(9), stream=3)
    found = method(outputs_of(raw), batch)
    pairs = weighted_pairs(method.rows, batch, Draws(batch, 0), near=0.5, far=1.4)
    lists = [listed(each) for each in pairs]
    margin = stages.margin(method.rows.tolist(), *lists, [1.2] * 9, 0.2)
    expected = margin + 0.5 * stages.overlap(method.masks[1].tolist())
    assert float(found.total.detach()) == pytest.approx(expected, rel=1e-5)


def test_a_mask_of_ones_is_the_plain_loss() -> None:
    raw = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))
    batch = BatchInfo(torch.arange(8) // 2, torch.arange(8), stream=1)
    plain = BatchInfo(batch.labels, batch.indices, stream=0)
    method, outputs = made(), outputs_of(raw)
    torch.testing.assert_close(method(outputs, batch).total, method(outputs, plain).total)


def test_fixed_masks_end_in_the_slices_of_divide_conquer() -> None:
    method = Kept(num_images=4, embedding_size=4, clusters=2, masks="fixed")
    assert method.masks[1].tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert made(masks="fixed").masks[2].tolist() == torch.eye(4).repeat_interleave(2, 1).tolist()
    slices = RAW.float().chunk(2, dim=1)
    parts = {f"slice_{k}": functional.normalize(part, dim=1) for k, part in enumerate(slices)}
    divided = DivideConquer(num_images=4, clusters=2)
    outputs, indices = outputs_of(RAW.float()), torch.arange(4)
    for k in range(2):
        method(outputs, BatchInfo(LABELS, indices, stream=2 + k))
        torch.testing.assert_close(method.rows[:, 2 * k : 2 * k + 2], parts[f"slice_{k}"])
        given = nearest_pairs(distance_table(method.rows), LABELS, 0.5)
        beta = torch.full((4,), 1.2)
        slice_loss = divided(Outputs(outputs.embeddings, parts), BatchInfo(LABELS, indices, 1 + k))
        masked = margin_loss(method.rows, *given, beta=beta, margin=0.2)
        torch.testing.assert_close(masked, slice_loss.total, atol=1e-6, rtol=0)
    assert not [p for group in method.parameter_groups() for p in group.parameters]


def test_negatives_are_drawn_evenly_over_distances_and_hardly_from_afar() -> None:
    angles = torch.tensor([0.0, 0.3, 0.8, 1.0, 1.3, 3.0])
    rows = torch.stack([angles.cos(), angles.sin(), torch.zeros(6), torch.zeros(6)], dim=1)
    labels = [0, 0, 1, 1, 2, 2]
    table, counts = distance_table(rows), torch.zeros(6, 6)
    for step in range(1000):
        batch = info(labels, step)
        positives, negatives = weighted_pairs(rows, batch, Draws(batch, 1), near=0.5, far=1.4)
        assert len(listed(positives)) == len(listed(negatives)) == 6, "as many as positives"
        for i, j in listed(negatives):
            assert labels[i] != labels[j]
            counts[i, j] += 1 / 1000
    powers = [math.exp(stages.log_inverse_density(float(table[0, j]), 4, 0.5)) for j in (2, 3, 4)]
    expected = [power / sum(powers) for power in powers]
    assert counts[0, 2:5].tolist() == pytest.approx(expected, abs=0.06)
    assert float(table[0, 5]) > 1.4
    assert float(counts[0, 5]) < 0.002


def test_positives_are_thinned_or_repeated_to_the_number_of_negatives() -> None:
    rows = functional.normalize(
        torch.randn(9, 4, generator=torch.Generator().manual_seed(5)), dim=1
    )
    labels = [0, 0, 0, 0, 0, 1, 1, 2, 3]  # 4, 1 and no positives: 22 / 9 rounds to 2
    batch = info(labels)
    positives, negatives = weighted_pairs(rows, batch, Draws(batch, 1), near=0.5, far=1.4)
    anchors = [i for i, _ in listed(positives)]
    assert (
        anchors == [i for i, _ in listed(negatives)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    )
    assert listed(positives)[-4:] == [(5, 6), (5, 6), (6, 5), (6, 5)]
    assert all(i != j and labels[i] == labels[j] for i, j in listed(positives))
    assert all(len({j for i, j in listed(negatives) if i == a}) == 2 for a in set(anchors))
    assert not listed(
        weighted_pairs(rows[-2:], info([0, 1]), Draws(info([0, 1]), 1), near=0.5, far=1.4)[0]
    )
    alone = weighted_pairs(rows[:3], info([0, 0, 0]), Draws(info([0, 0, 0]), 1), near=0.5, far=1.4)
    assert not listed(alone[1])


def view_at(images: ImageDataset, epoch: int, step: int) -> TrainingView:
    return labeled_view(images, embedder(), epoch=epoch, step=step)


def test_clusters_double_and_children_start_as_their_parents(images: ImageDataset) -> None:
    # Three classes in every color, so that any cluster of colors can be learned from.
    images = ImageDataset(images.paths, np.arange(COUNT) % 3, ("0", "1", "2"))
    method = made()
    generator = torch.Generator().manual_seed(0)
    counts, rests, parents = [], [], None
    for epoch in range(7):
        for mask in method.masks:
            mask.data += 0.1 * torch.rand(mask.shape, generator=generator)
        before = [mask.clone() for mask in method.masks]
        plan = method.before_epoch(view_at(images, epoch, epoch))
        assert plan.batches is not None
        assert plan.batches.streams is not None
        count = plan.metadata["clusters"]
        counts.append(count)
        rests.append(plan.rest)
        assert plan.batches.streams.min() >= count
        assert plan.batches.streams.max() < 2 * count
        clusters = method.cluster_of.numpy()
        for stream, batch in zip(plan.batches.streams, plan.batches.indices, strict=True):
            assert set(clusters[batch]) == {stream - count}
        if epoch in (2, 4):
            level = int(method.level)
            children = before[level - 1].repeat_interleave(2, dim=0)
            assert torch.equal(method.masks[level].detach(), children)
            assert not torch.equal(before[level], children)
            assert parents is not None
            assert (clusters // 2 == parents).mean() > 0.7, "most children are in their parent"
        parents = clusters.copy()
    assert counts == [1, 1, 2, 2, 4, 4, 4]
    assert rests == [frozenset({"backbone"}) if e % 2 == 0 else frozenset() for e in range(7)]


def test_the_whole_embedding_comes_after_its_share_of_the_run(images: ImageDataset) -> None:
    method = made()
    plan = method.before_epoch(view_at(images, 0, 44))
    assert plan.batches is not None
    assert plan.batches.indices.shape[0] == 1
    plan = method.before_epoch(view_at(images, 1, 45))
    assert plan.batches is not None
    assert plan.batches.streams is None


def test_a_split_that_leaves_too_little_is_not_made() -> None:
    chance = np.random.default_rng(0)
    features = chance.normal(size=(8, 3)).astype(np.float32)
    two = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert find_clusters(features, two, 1, seed=0)[1]
    assert split_clusters(features, np.arange(8), np.zeros(8, dtype=np.int64), 1, seed=0) is None
    far = features + np.repeat([[0, 0, 0], [50, 0, 0]], 4, axis=0)[[0, 4, 1, 5, 2, 6, 3, 7]]
    halves = split_clusters(
        far.astype(np.float32),
        np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        np.zeros(8, dtype=np.int64),
        1,
        seed=0,
    )
    assert halves is not None
    assert len({*halves[::2].tolist()}) == len({*halves[1::2].tolist()}) == 1
    assert set(halves.tolist()) == {0, 1}


def test_masks_have_a_rate_of_their_own_and_adam_begins_anew_with_each_level() -> None:
    method, model = made(), embedder("frozen_statistics")
    method.attach(model)
    settings = Settings(learning_rate=1e-3)
    optimizer = build_optimizer(model, method, settings)
    group = next(group for group in optimizer.param_groups if group["name"] == "masks")
    assert group["lr"] == pytest.approx(0.1)
    assert group["weight_decay"] == 1e-4
    pixels = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    outputs = model.forward_outputs(pixels, method.parts)
    method(outputs, BatchInfo(torch.arange(8) // 2, torch.arange(8), stream=2)).total.backward()
    before = [mask.detach().clone() for mask in method.masks]
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, method.masks, strict=True)]
    assert moved == [False, True, False]
    assert [mask in optimizer.state for mask in method.masks] == moved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 6}, "power of two"),
        ({"rest_epochs": -1}, "rest_epochs"),
        ({"masks": "random"}, "masks"),
        ({"clusters": 16, "masks": "fixed"}, "fixed masks of 8"),
        ({"overlap_weight": -1.0}, "overlap_weight"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**options)
