"""PADS: its worked examples, its histogram, the turns of its policy, and its limits."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cbml.data import ImageDataset
from cbml.errors import BadData
from cbml.evaluation import evaluate
from cbml.methods import PADS
from cbml.methods.pads import (
    _EDGES,
    BINS,
    class_distances,
    distance_bin,
    hold_back,
    policy_loss,
    start_weights,
)
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Settings, TrainingView
from cbml.training.optimizers import build_optimizer
from tests.methods.examples import labeled_view
from tests.methods.test_margin import listed
from tests.oracles import stages
from tests.training.small import CLASSES, IMAGES, embedder

COUNT = CLASSES * IMAGES
NEW = [[0.2, -0.1, 0.4], [0, 0.3, 0], [-0.2, 0.1, 0.1]]
OLD = [[0.1, 0, 0.1], [0, 0.1, 0.2], [0, 0, 0]]


def made(**options: object) -> PADS:
    return PADS(**{"num_classes": CLASSES, **options})


def test_worked_example_of_the_bins() -> None:
    d = torch.tensor([0, 0.05, 0.1, 0.15, 0.5, 0.72, 1.39, 1.5]).double()
    assert distance_bin(d, _EDGES).tolist() == [0, 0, 0, 1, 8, 13, 28, 28]
    start = start_weights()
    assert torch.nonzero(start > 1e-3)[:, 0].tolist() == list(range(3, 12))
    assert start[3:12].tolist() == pytest.approx([1 / 9] * 9)
    edges, p = [0.1, 0.5, 0.9, 1.3], [0.2, 0.5, 0.3]
    d = [0, 0.3, 0.6, 1.2]
    chances = stages.histogram_chances(d, edges, p)
    assert chances == pytest.approx([0.166667, 0.166667, 0.416667, 0.25], abs=1e-6)
    weights = torch.tensor(p)[distance_bin(torch.tensor(d), torch.tensor(edges))]
    assert (weights / weights.sum()).tolist() == pytest.approx(chances)
    assert (weights[2:] / weights[2:].sum()).tolist() == pytest.approx([0.625, 0.375])


def test_worked_example_of_the_policy() -> None:
    actions, rewards, values = [2, 0, 1], (0.605, 0.612), (0.2, 0.3)
    parts = stages.policy_loss(NEW, OLD, actions, rewards, values)
    assert parts == pytest.approx((-0.888449, 0.084872), abs=1e-6)
    found = policy_loss(
        torch.tensor(NEW).double(),
        torch.tensor(OLD).double(),
        torch.tensor(actions),
        rewards=tuple(torch.tensor(reward).double() for reward in rewards),
        values=tuple(torch.tensor(value).double() for value in values),
    )
    assert float(found) == pytest.approx(-0.803577, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same_policy_loss(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old = (torch.randn(3, 7, generator=generator).double() for _ in range(2))
    actions = torch.randint(0, 3, (7,), generator=generator)
    numbers = torch.rand(4, generator=generator).double()
    found = policy_loss(
        new, old, actions, rewards=(numbers[0], numbers[1]), values=(numbers[2], numbers[3])
    )
    r, v = (numbers[0].item(), numbers[1].item()), (numbers[2].item(), numbers[3].item())
    parts = stages.policy_loss(new.tolist(), old.tolist(), actions.tolist(), r, v)
    assert float(found) == pytest.approx(sum(parts))


def plane(angles: list[float]) -> Outputs:
    turned = torch.tensor(angles)
    return Outputs(torch.stack([turned.cos(), turned.sin()], dim=1))


def drawn(method: PADS, outputs: Outputs, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """How often each row was the positive and the negative of each other."""
    counts = torch.zeros(2, len(labels), len(labels))
    for step in range(1000):
        batch = BatchInfo(labels, torch.arange(len(labels)), step=step)
        for number, pairs in enumerate(method.pairs(outputs.embeddings, batch)):
            counts[number, pairs.anchors, pairs.others] += 1 / 1000
    return counts[0], counts[1]


def test_negatives_come_by_the_histogram_and_positives_evenly() -> None:
    outputs, labels = plane([0.0, 0.35, 0.62, 1.0, 1.9]), torch.tensor([0, 0, 1, 1, 1])
    method = made()
    method.weights.copy_(torch.rand(BINS, generator=torch.Generator().manual_seed(0)))
    table = torch.cdist(outputs.embeddings, outputs.embeddings)
    edges, weights = _EDGES.tolist(), method.weights.tolist()
    positives, negatives = drawn(method, outputs, labels)
    for row in range(5):
        chances = stages.histogram_chances(table[row].tolist(), edges, weights)
        assert negatives[row].tolist() == pytest.approx(chances, abs=0.06)
    assert positives[0].tolist() == pytest.approx([0.5, 0.5, 0, 0, 0], abs=0.06), "itself too"
    method = made(own_class=False)
    method.weights.fill_(1.0)
    _, negatives = drawn(method, outputs, labels)
    assert negatives[0].tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3], abs=0.06)


def test_the_loss_is_the_margin_of_the_drawn_pairs() -> None:
    method, outputs = made(), plane([0.0, 0.35, 0.62, 1.0, 1.9])
    method.beta.data.copy_(torch.linspace(0.4, 1.4, CLASSES))
    batch = BatchInfo(torch.tensor([0, 0, 1, 1, 3]), torch.arange(5), step=4)
    pairs = method.pairs(outputs.embeddings, batch)
    beta = method.beta[batch.labels].tolist()
    expected = stages.margin(outputs.embeddings.tolist(), *map(listed, pairs), beta, 0.2)
    assert float(method(outputs, batch).total.detach()) == pytest.approx(expected, rel=1e-5)


def view_at(images: ImageDataset, step: int = 0, epoch: int = 0) -> TrainingView:
    return labeled_view(images, embedder(), epoch=epoch, step=step)


def test_a_part_of_each_class_is_never_trained_on(images: ImageDataset) -> None:
    labels = np.repeat(np.arange(4), [3, 4, 20, 40])
    held = hold_back(labels, 0.15, seed=0)
    assert np.bincount(labels[held], minlength=4).tolist() == [0, 2, 3, 6]
    assert np.array_equal(held, hold_back(labels, 0.15, seed=0))
    assert not np.array_equal(held, hold_back(labels, 0.15, seed=1))
    method = made()
    held = hold_back(images.known_labels, 0.15, seed=0)
    assert len(held) == 2 * CLASSES
    for epoch in range(3):
        plan = method.before_epoch(view_at(images, epoch=epoch))
        assert plan.batches is not None
        seen = set(plan.batches.indices.ravel().tolist())
        assert seen == set(range(COUNT)) - set(held.tolist())


def test_classes_without_four_images_are_refused() -> None:
    with pytest.raises(BadData, match="no class has four images"):
        made().check_images(np.array([3, 3, 2]))
    made().check_images(np.array([3, 4, 2]))


def test_recall_is_measured_where_it_is_asked_for() -> None:
    assert made(recall_at=(1, 10, 100, 1000)).recall_at == [1, 10, 100, 1000]
    for wrong in ((1, 2, 4), (2, 4, 8, 16)):
        with pytest.raises(ValueError, match="give 4 numbers, the first of them 1"):
            made(recall_at=wrong)


def test_distances_within_and_between_classes() -> None:
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    vectors = functional.normalize(rows, dim=1).numpy()
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    within, means = [], []
    for label in range(3):
        own = vectors[labels == label]
        pairs = [(i, j) for i in range(len(own)) for j in range(len(own)) if i != j]
        within.append(np.mean([1 - own[i] @ own[j] for i, j in pairs]))
        means.append(own.mean(axis=0) / np.linalg.norm(own.mean(axis=0)))
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    between = np.mean([1 - means[i] @ means[j] for i, j in pairs])
    assert class_distances(vectors, labels) == pytest.approx((np.mean(within), between), rel=1e-5)


def test_the_policy_sees_its_metrics_and_acts_on_the_histogram(images: ImageDataset) -> None:
    method, view = made(every=2), view_at(images, step=3)
    before = method.weights.clone()
    batch = BatchInfo(torch.zeros(1), torch.zeros(1))
    for step in (1, 2):
        method.after_step(view_at(images, step=step), plane([0.0]), batch)
    assert int(method.turns) == 0, "first after M + 1"
    method.after_step(view, plane([0.0]), batch)
    assert int(method.turns) == 1
    held = hold_back(images.known_labels, 0.15, seed=0)
    scores = evaluate(view.embed(indices=held), images.known_labels[held]).metrics
    metrics = [scores[f"recall@{k}"] for k in (1, 2, 4, 8)]
    assert method.history[-1, :4].tolist() == pytest.approx(metrics)
    assert torch.equal(method.history, method.history[:1].expand(32, 7)), "filled with copies"
    assert float(method.last_reward) == pytest.approx(metrics[0])
    state = method.last_state
    assert len(state) == 198
    assert state[:7].tolist() == state[140:147].tolist() == method.history[0].tolist()
    assert state[168:197].tolist() == pytest.approx((before / before.sum()).tolist())
    assert float(state[197]) == pytest.approx(0.03)
    factors = torch.tensor([0.8, 1.0, 1.25])[method.last_actions]
    torch.testing.assert_close(method.weights, (before * factors).clamp(1e-25, 1e25))
    assert len(set(method.last_actions.tolist())) > 1


def test_three_bins_move_as_in_the_worked_example() -> None:
    p = torch.tensor([0.2, 0.5, 0.3]) * torch.tensor([0.8, 1.0, 1.25])
    assert (p / p.sum()).tolist() == pytest.approx([0.154589, 0.483092, 0.362319], abs=1e-6)


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_turns_learn_in_their_order() -> None:
    """From the second turn on; the history moves each time, the old policy every fifth."""
    method = made(reward="recall_and_nmi")
    start = copy.deepcopy(method.policy)
    metrics = torch.rand(12, 7, generator=torch.Generator().manual_seed(0))
    for turn in range(12):
        method._turn(metrics[turn], 0.1)
        assert same_weights(start, method.policy) == (turn == 0)
        assert same_weights(method.old_policy, method.policy) == (turn in (0, 5, 10))
        reward = float(metrics[turn, 0] + metrics[turn, 6]) / 2
        assert float(method.last_reward) == pytest.approx(reward)
        assert method.history[-1].tolist() == metrics[turn].tolist()
        assert method.history[-1 - turn].tolist() == metrics[0].tolist()
        state = method.last_state
        assert torch.equal(state[:140].view(20, 7), method.history[-20:]), "oldest first"
        means = [method.history[-span:].mean(dim=0) for span in (2, 8, 16, 32)]
        assert torch.equal(state[140:168], torch.cat(means))


def test_a_turn_learns_from_the_state_and_the_actions_before() -> None:
    method = made()
    metrics = torch.rand(2, 7, generator=torch.Generator().manual_seed(0))
    method._turn(metrics[0], 0.1)
    twin = copy.deepcopy(method)
    method._turn(metrics[1], 0.2)
    with torch.no_grad():
        value, old = twin.policy(method.last_state)[1], twin.old_policy(twin.last_state)[0]
    logits, last = twin.policy(twin.last_state)
    rewards = (metrics[0, 0], metrics[1, 0])
    policy_loss(logits, old, twin.last_actions, rewards=rewards, values=(last, value)).backward()
    for before, after in zip(twin.policy.parameters(), method.policy.parameters(), strict=True):
        clear = before.grad.abs() > 1e-5
        moved = (after - before).detach()[clear]
        expected = -0.01 * before.grad.sign()[clear]  # the first step of Adam
        torch.testing.assert_close(moved, expected, atol=2e-4, rtol=0)
        assert bool(clear.any())


def test_a_better_score_makes_the_taken_actions_more_likely() -> None:
    method = made()
    first = torch.tensor([0.2, 0.3, 0.4, 0.5, 0.1, 0.2, 0.3])
    method._turn(first, 0.1)
    taken, state = method.last_actions.clone(), method.last_state.clone()
    bins = torch.arange(BINS)

    def chance(policy: nn.Module) -> float:
        with torch.no_grad():
            return float(policy(state)[0].log_softmax(dim=0)[taken, bins].mean())

    worse = copy.deepcopy(method)
    before = chance(method.policy)
    method._turn(first + 0.2, 0.2)
    worse._turn(first - 0.2, 0.2)
    assert chance(method.policy) > before > chance(worse.policy)


def test_weights_stay_within_bounds() -> None:
    method = made()
    method.weights[0], method.weights[1] = 1e-25, 1e25
    for turn in range(10):
        method._turn(torch.full((7,), 0.1 * (turn % 3)), 0.0)
    assert float(method.weights.min()) >= 1e-25 * 0.999
    assert float(method.weights.max()) <= 1e25 * 1.001
    outputs = plane([0.0, 0.1, 0.2, 1.5])
    labels = torch.tensor([0, 0, 1, 1])
    loss = method(outputs, BatchInfo(labels, torch.arange(4))).total
    assert bool(loss.isfinite())


def test_the_policy_is_not_trained_by_the_run() -> None:
    method = made()
    optimizer = build_optimizer(embedder(), method, Settings(learning_rate=1e-5))
    found = {group["name"]: len(group["params"]) for group in optimizer.param_groups}
    assert found["beta"] == 1
    assert {*found} == {"backbone", "head", "beta"}
    beta = next(group for group in optimizer.param_groups if group["name"] == "beta")
    assert (beta["lr"], beta["weight_decay"]) == (pytest.approx(1e-3), 0.0)
    assert not any(p.requires_grad for p in method.old_policy.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every"),
        ({"held_back": 0.0}, "held_back"),
        ({"reward": "loss"}, "reward"),
        ({"beta": -1.0}, "beta"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**options)
