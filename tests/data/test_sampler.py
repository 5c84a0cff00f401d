"""P classes times K images: nothing left out, the same on every rank and when resumed."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbml.data.sampler import ClassBalancedSampler
from cbml.errors import BadData
from tests.oracles import sampler as oracle

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=25)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    sizes = draw(SIZES)
    labels = [7 * label - 3 for label, size in enumerate(sizes) for _ in range(size)]
    labels = draw(st.permutations(labels)) if len(labels) < 60 else labels
    classes = draw(st.integers(1, len(sizes)))
    return list(labels), classes, draw(st.integers(1, 9)), draw(st.integers(0, 99))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_an_epoch_keeps_every_promise(case: tuple[list[int], int, int, int]) -> None:
    labels, classes, images, seed = case
    sampler = ClassBalancedSampler(
        labels, classes_per_batch=classes, samples_per_class=images, seed=seed
    )
    batches = list(sampler)
    assert oracle.faults(labels, batches, classes, images) == []


def test_the_judge_sees_faults() -> None:
    labels = [0, 0, 1, 1, 2]
    good = [[0, 1, 2, 3], [4, 4, 0, 1]]
    assert oracle.faults(labels, good, 2, 2) == []
    assert oracle.faults(labels, [[0, 1, 2, 3], [4, 4, 0, 0]], 2, 2)
    assert oracle.faults(labels, [[0, 1, 2, 3], [2, 3, 0, 1]], 2, 2)
    assert oracle.faults(labels, [[0, 1, 0, 1], [4, 4, 2, 3]], 2, 2)
    assert oracle.faults(labels, [*good, good[0]], 2, 2)


def together(batches: list[list[int]], classes: int) -> np.ndarray:
    met = np.zeros((classes, classes))
    for batch in batches:
        for first, second in itertools.permutations(batch, 2):
            met[first, second] += 1
    return met / len(batches)


def test_classes_meet_as_often_as_in_the_hand_dealt_order() -> None:
    sizes = [5, 9, 17, 3, 8, 30, 12, 6, 6, 22]
    labels = np.repeat(np.arange(10), sizes)
    sampler = ClassBalancedSampler(labels, classes_per_batch=4, samples_per_class=4)
    fast, slow = np.zeros((10, 10)), np.zeros((10, 10))
    passes = 400
    for number in range(passes):
        plan = labels[sampler.plan(number)][:, ::4].tolist()
        fast += together(plan, 10) / passes
        slow += together(oracle.dealt(sizes, 4, 4, number), 10) / passes
    assert np.abs(fast - slow).max() < 0.03
    assert slow.max() > 0.2


def test_an_epoch_is_seeded_by_epoch() -> None:
    labels = np.repeat(np.arange(20), 10)
    first, again, other = (
        ClassBalancedSampler(labels, classes_per_batch=5, samples_per_class=4, seed=seed)
        for seed in (1, 1, 2)
    )
    passes = [list(first), list(first)]
    assert passes == [list(again), list(again)]
    assert passes[0] != passes[1]
    assert passes[0] != list(other)
    assert first.epoch == 2


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_get_disjoint_parts_of_one_global_batch(world_size: int) -> None:
    labels = np.repeat(np.arange(30), 12)
    options = {"classes_per_batch": 12, "samples_per_class": 4, "seed": 3}
    whole = list(ClassBalancedSampler(labels, **options))
    parts = [
        list(ClassBalancedSampler(labels, **options, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert whole == [list(itertools.chain(*shares)) for shares in zip(*parts, strict=True)]


def test_resume_at_every_step_is_exact() -> None:
    labels = np.repeat(np.arange(12), 9)
    options = {"classes_per_batch": 4, "samples_per_class": 4, "seed": 5}
    unbroken = ClassBalancedSampler(labels, **options)
    expected = [batch for _ in range(3) for batch in unbroken]
    for stop in range(len(expected) + 1):
        first = ClassBalancedSampler(labels, **options)
        seen = list(itertools.islice((batch for _ in range(3) for batch in first), stop))
        state = json.loads(json.dumps(first.state_dict()))
        second = ClassBalancedSampler(labels, **options)
        second.load_state_dict(state)
        while second.epoch < 3:
            seen += list(second)
        assert seen == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 1), ("classes_per_batch", 3), ("samples_per_class", 2), ("world_size", 2)],
)
def test_resume_under_other_conditions_is_refused(name: str, value: int) -> None:
    labels = np.repeat(np.arange(12), 9)
    options = {"classes_per_batch": 4, "samples_per_class": 4, "seed": 5, "world_size": 1}
    state = ClassBalancedSampler(labels, **options).state_dict()
    with pytest.raises(BadData, match=f"sampler: {name} was"):
        ClassBalancedSampler(labels, **{**options, name: value}).load_state_dict(state)
    with pytest.raises(BadData, match="labels was"):
        ClassBalancedSampler(labels[::-1], **options).load_state_dict(state)


def test_the_batch_size_is_drawn_for_each_epoch() -> None:
    labels = np.repeat(np.arange(60), 12)
    sampler = ClassBalancedSampler(labels, samples_per_class=4, batch_range=(80, 200), world_size=2)
    sizes = []
    for epoch in range(60):
        plan = sampler.plan(epoch)
        sizes.append(plan.shape[1])
        classes = plan.shape[1] // 4
        assert oracle.faults(labels.tolist(), plan.tolist(), classes, 4) == []
    assert min(sizes) >= 80
    assert max(sizes) <= 200
    assert len(set(sizes)) > 15
    assert np.percentile(sizes, 10) < 110 < 170 < np.percentile(sizes, 90)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_batch": 9}, "from a dataset of 6"),
        ({"classes_per_batch": 0}, "at least 1"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"classes_per_batch": 3, "samples_per_class": 3, "world_size": 2}, "shared equally"),
        ({"batch_range": (4, 20)}, "too small"),
        ({"batch_range": (20, 10)}, "smallest first"),
    ],
)
def test_what_cannot_work_is_said_at_once(options: dict[str, int], message: str) -> None:
    with pytest.raises(BadData, match=message):
        ClassBalancedSampler(np.repeat(np.arange(6), 5), **{"classes_per_batch": 4, **options})
    with pytest.raises(BadData, match="at least one image"):
        ClassBalancedSampler([])


def test_a_giant_class_is_reached_and_never_meets_itself() -> None:
    labels = [0] * 500 + [1] * 3 + [2] * 4 + [3]
    sampler = ClassBalancedSampler(labels, classes_per_batch=3, samples_per_class=4)
    assert oracle.faults(labels, list(sampler), 3, 4) == []


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(0, 20))
def test_guessed_labels_leave_the_epoch_as_long_as_it_was(
    case: tuple[list[int], int, int, int], more: int
) -> None:
    labels, classes, images, seed = case
    classes += more  # also more classes in a batch than there are
    options = {"classes_per_batch": classes, "samples_per_class": images, "seed": seed}
    batches = list(ClassBalancedSampler(labels, guessed=True, **options))
    assert oracle.guessed_faults(labels, batches, classes, images) == []
    assert oracle.guessed_faults(labels, [*batches, batches[0]], classes, images)


def test_every_image_of_a_giant_class_comes_up_in_some_epoch() -> None:
    labels = np.repeat(np.arange(8), [200, *[5] * 7])
    sampler = ClassBalancedSampler(labels, classes_per_batch=6, samples_per_class=4, guessed=True)
    assert len(sampler) == 10
    seen = [set(np.concatenate(list(sampler)).tolist()) for _ in range(40)]
    assert set.union(*seen) == set(range(len(labels)))
    assert max(map(len, seen)) < len(labels)


def test_guessed_classes_are_shared_by_ranks() -> None:
    labels = np.arange(30) % 3
    samplers = [
        ClassBalancedSampler(
            labels, batch_range=(16, 24), samples_per_class=4, guessed=True, rank=r, world_size=2
        )
        for r in range(2)
    ]
    for first, second in zip(*(list(sampler) for sampler in samplers), strict=True):
        assert len(first) == len(second)


def test_relabeled_sampler_continues_as_one_with_those_labels() -> None:
    before, after = np.arange(60) % 12, np.arange(60) // 4
    options = {"classes_per_batch": 5, "samples_per_class": 3, "guessed": True}
    first, second = (ClassBalancedSampler(labels, **options) for labels in (before, after))
    assert first.plan(0).tolist() != second.plan(0).tolist()
    first.relabel(after)
    assert first.plan(0).tolist() == second.plan(0).tolist()
    second.load_state_dict(first.state_dict())
    with pytest.raises(BadData, match="59 new ones for 60 images"):
        first.relabel(after[1:])
    with pytest.raises(BadData, match="guessed was True"):
        ClassBalancedSampler(after, classes_per_batch=5, samples_per_class=3).load_state_dict(
            first.state_dict()
        )
