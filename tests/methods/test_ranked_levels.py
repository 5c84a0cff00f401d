"""RLL-(L,M,H): its worked example, its gradient, plain loops, and its limits."""

import pytest
import torch

from cbml.methods import RankedLevels
from cbml.methods.hdc import LEVEL_NAMES
from tests.methods.examples import ANGLES, LABELS, circle, loss_of
from tests.methods.test_hdc import random_levels
from tests.oracles import baselines

LEVELS = dict(zip(LEVEL_NAMES, map(circle, ANGLES), strict=True))


def test_worked_example() -> None:
    found = loss_of(RankedLevels(), LEVELS)
    expected = [0.218634, 0.050000, 0.508134]
    assert [float(term) for term in found.terms.values()] == pytest.approx(expected, abs=1e-6)
    assert float(found.total) == pytest.approx(0.776767, abs=1e-6)


ANCHORS = [[-0.067162, 0.105424], [-0.099169, 0.076095], [0.224117, -0.076143], [-0.125, 0.0]]
BOTH = [[-0.067272, 0.105596], [-0.198177, 0.152066], [0.515449, -0.257662], [-0.25, 0.0]]


@pytest.mark.parametrize(("both", "expected"), [(False, ANCHORS), (True, BOTH)])
def test_an_image_moves_as_an_anchor_alone(both: bool, expected: list[list[float]]) -> None:
    rows = circle(ANGLES[0]).requires_grad_()
    loss_of(RankedLevels(gallery_gradient=both), {**LEVELS, "low": rows}).total.backward()
    free, unit = torch.tensor(expected).double(), rows.detach()
    along = free - (free * unit).sum(dim=1, keepdim=True) * unit  # rows keep their length
    torch.testing.assert_close(rows.grad, along, atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same(seed: int) -> None:
    parts, labels = random_levels(seed)
    expected = sum(
        baselines.ranked_list(level.tolist(), labels.tolist(), None, None)
        for level in parts.values()
    )
    assert float(loss_of(RankedLevels(), parts, labels).total) == pytest.approx(expected, rel=1e-6)


def test_three_equal_levels_are_three_times_one() -> None:
    equal = dict.fromkeys(LEVEL_NAMES, LEVELS["low"])
    assert float(loss_of(RankedLevels(), equal).total) == pytest.approx(3 * 0.218634, abs=3e-6)


def test_a_high_temperature_leaves_the_hardest_negative() -> None:
    cold = loss_of(RankedLevels(negative_temperature=1e4), LEVELS).terms["low"]
    hardest = []
    distance = torch.cdist(LEVELS["low"], LEVELS["low"])
    for i in range(4):
        same = LABELS[i] == LABELS
        positives = [distance[i, j] - 0.8 for j in range(4) if same[j] and j != i]
        nearest = 1.2 - min(distance[i, j] for j in range(4) if not same[j])
        hardest.append(0.5 * max(positives[0], 0.0) + 0.5 * max(nearest, 0.0))
    assert float(cold) == pytest.approx(float(sum(hardest)) / 4, abs=1e-6)
