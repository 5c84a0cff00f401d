"""HORDE: its worked examples, plain loops, and its limits."""

import pytest
import torch
from torch import Tensor, nn

from cbml.errors import BadData
from cbml.methods import Horde
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo
from tests.methods.examples import ANGLES, LABELS, circle
from tests.methods.test_hdc import random_levels
from tests.oracles import methods

# Two images, two channels, two places.
MAPS = torch.tensor([[[1.0, 2.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]]]).unsqueeze(-1).double()
PROJECTIONS = (
    [[1.0, 1.0], [1.0, -1.0], [0.0, 2.0]],
    [[1.0, 0.0], [1.0, 1.0], [-1.0, 1.0]],
    [[1.0, -1.0], [2.0, 0.0], [1.0, 1.0]],
)


def with_projections() -> Horde:
    method = Horde(orders=3, width=3)
    for rows in PROJECTIONS:
        method.projections.append(nn.Parameter(torch.tensor(rows).double(), requires_grad=False))
    return method


def test_worked_example_of_the_pair_loss() -> None:
    rows = circle(ANGLES[0])
    assert float(Horde().pair_loss(rows, LABELS)) == pytest.approx(0.248738, abs=1e-6)
    pull = Horde(threshold=1.0).pair_loss(rows, LABELS)  # no negative is above it
    assert float(pull) == pytest.approx(0.045584, abs=1e-6)


def test_worked_example_of_the_moments() -> None:
    second, third = with_projections().moments(MAPS)
    assert second.tolist() == [[3.5, 2.0, -1.0], [1.0, -0.5, 1.0]]
    assert third.tolist() == [[3.5, 7.0, -3.0], [0.0, 0.0, 1.0]]
    cosines = [float(torch.cosine_similarity(*moment, dim=0)) for moment in (second, third)]
    assert cosines == pytest.approx([0.240772, -0.357930], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same(seed: int) -> None:
    parts, labels = random_levels(seed)
    for rows in parts.values():
        expected = methods.cosine_contrastive(rows.tolist(), labels.tolist(), 0.5)
        assert float(Horde().pair_loss(rows, labels)) == pytest.approx(expected, rel=1e-9)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, 3, 2, 2, generator=generator).double()
    method = Horde(orders=4, width=5)
    drawn = [torch.randn(5, 3, generator=generator).double() for _ in range(4)]
    method.projections.extend(nn.Parameter(each, requires_grad=False) for each in drawn)
    places = features.flatten(2).transpose(1, 2).tolist()
    for order, moment in zip((2, 3, 4), method.moments(features), strict=True):
        expected = [methods.moment(image, [p.tolist() for p in drawn], order) for image in places]
        torch.testing.assert_close(moment, torch.tensor(expected).double())


def test_the_order_of_places_does_not_matter() -> None:
    for one, other in zip(
        with_projections().moments(MAPS), with_projections().moments(MAPS.flip(2)), strict=True
    ):
        torch.testing.assert_close(one, other)


def loss_on(method: Horde, maps: Tensor) -> Tensor:
    model = Embedder("conv4", dim=6, seed=1)
    method.attach(model)
    unit = nn.functional.normalize(model.head(maps.mean(dim=(2, 3))), dim=1)
    found: Tensor = method(Outputs(unit, {"map": maps}), BatchInfo(LABELS, torch.arange(4))).total
    return found.detach()


def test_one_order_is_the_plain_loss() -> None:
    maps = torch.randn(4, 64, 2, 2, generator=torch.Generator().manual_seed(0)).relu()
    plain = Horde(orders=1)
    unit = nn.functional.normalize(Embedder("conv4", dim=6, seed=1).head(maps.mean((2, 3))), dim=1)
    expected = plain.pair_loss(unit, LABELS)
    assert float(loss_on(plain, maps)) == pytest.approx(float(expected.detach()), rel=1e-6)
    assert not [*plain.parameters()]
    assert loss_on(Horde(orders=2, width=8, embedding_size=6), maps) > expected.detach()


def test_fixed_projections_estimate_the_power_of_the_product() -> None:
    """The mean of φ_2 · φ_2' / d over ±1 draws is (F · F')²."""
    maps = torch.tensor([[1.0, -0.5, 2.0], [0.5, 1.0, 1.5]])[:, :, None, None]
    method = Horde(orders=2, width=400_000, trained=False)
    method.attach(_WithChannels(3))
    assert not [p for p in method.parameters() if p.requires_grad]
    (moment,) = method.moments(maps)
    estimate = float(moment[0] @ moment[1]) / method.width
    assert estimate == pytest.approx(9.0, rel=0.03)


class _WithChannels(Embedder):
    """A model whose map has few channels."""

    def __init__(self, channels: int) -> None:
        super().__init__("conv4", dim=2)
        self.head = nn.Linear(channels, 2)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="orders must be a whole number"):
        Horde(orders=0)
    model = Embedder("conv4", dim=6)
    model.pooling = "backbone"
    with pytest.raises(BadData, match="hides the map"):
        Horde().attach(model)
