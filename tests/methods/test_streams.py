"""Clusters whose batches take turns: their numbers, their images, their order."""

import numpy as np
import pytest

from cbml.data import ClassBalancedSampler
from cbml.methods.streams import (
    batches_of,
    can_be_learned_from,
    renumbered,
    round_robin,
    without_lone_images,
)
from tests.oracles import stages


def test_worked_example_of_renumbering() -> None:
    previous, current = np.array([0, 0, 1, 1, 2, 2]), np.array([1, 1, 2, 2, 0, 0])
    assert renumbered(previous, current, 3).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("seed", range(5))
def test_no_assignment_lets_more_images_keep_their_number(seed: int) -> None:
    chance = np.random.default_rng(seed)
    previous, current = chance.integers(4, size=(2, 30))
    found = renumbered(previous, current, 4)
    kept = int((found == previous).sum())
    assert kept == stages.renumbered(previous.tolist(), current.tolist(), 4)
    pairs = set(zip(current.tolist(), found.tolist(), strict=True))
    assert len(pairs) == len({now for now, _ in pairs}) == len({new for _, new in pairs})


def test_the_only_image_of_its_class_in_a_cluster_waits() -> None:
    clusters, labels = np.array([0, 0, 0, 1, 1, -1]), np.array([5, 5, 6, 6, 5, 6])
    assert without_lone_images(clusters, labels).tolist() == [0, 0, -1, -1, -1, -1]


def test_two_classes_of_two_images_can_be_learned_from() -> None:
    assert can_be_learned_from(np.array([3, 3, 1, 1]))
    assert not can_be_learned_from(np.array([3, 3, 3, 1]))
    assert not can_be_learned_from(np.zeros(0, dtype=np.int64))


@pytest.mark.parametrize("classes", [2, 3, 5, 9])
def test_batches_have_their_size_whatever_the_number_of_classes(classes: int) -> None:
    sampler = ClassBalancedSampler(np.arange(20) % 10, classes_per_batch=5, samples_per_class=2)
    members = np.arange(100, 100 + 4 * classes)
    labels = members % classes
    plan = batches_of(members, labels, sampler, size=10, seed=(1, 2))
    assert plan.shape[1] == 10
    assert set(plan.ravel().tolist()) <= set(members.tolist())
    if classes >= 5:
        assert set(plan.ravel().tolist()) == set(members.tolist()), "each comes up"
        held = labels[plan - 100].reshape(len(plan), 5, 2)
        assert (held[:, :, 0] == held[:, :, 1]).all()
    assert all(len(np.unique(labels[row - 100])) == min(classes, 5) for row in plan)
    again = batches_of(members, labels, sampler, size=10, seed=(1, 2))
    other = batches_of(members, labels, sampler, size=10, seed=(1, 3))
    assert np.array_equal(plan, again)
    assert not np.array_equal(plan, other)


def test_streams_take_turns_and_short_ones_start_again() -> None:
    found = round_robin({1: np.array([[1], [2], [3]]), 4: np.array([[7], [8]])})
    assert found.streams is not None
    assert found.streams.tolist() == [1, 4, 1, 4, 1, 4]
    assert found.indices[:, 0].tolist() == [1, 7, 2, 8, 3, 7]
