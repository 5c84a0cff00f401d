"""Object attention: its worked example, plain loops, and what must not change a crop."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cbml.models.object_attention import (
    crop_to_object,
    largest_piece,
    object_boxes,
    pieces,
    scaled,
    walk,
)
from tests.oracles.object_attention import object_box, resized, walked

EXAMPLE = torch.tensor([[0, 0, 0], [0, 5, 1], [0, 1, 0]]).double()[None, None]


def maps(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_worked_example() -> None:
    expected = [[0.010036, 0.120104, 0.028543], [0.120104, 0.363728, 0.140946]]
    expected += [[0.028543, 0.140946, 0.047050]]
    mass = walk(EXAMPLE)
    assert mass[0].tolist() == [pytest.approx(row, abs=1e-6) for row in expected]
    expected = [[0, 0.311197, 0.052325], [0.311197, 1, 0.370124], [0.052325, 0.370124, 0.104649]]
    assert scaled(mass)[0].tolist() == [pytest.approx(row, abs=1e-6) for row in expected]


@pytest.mark.parametrize("steps", range(11))
def test_no_step_of_the_walk_loses_mass(steps: int) -> None:
    mass = walk(maps(1, 4, 5, 4, 3), steps)
    torch.testing.assert_close(mass.sum(dim=(1, 2)), torch.ones(4).double())


def test_a_constant_added_to_the_map_changes_nothing() -> None:
    found = maps(2, 3, 5, 4, 4)
    torch.testing.assert_close(walk(found + 1e6), walk(found), rtol=1e-6, atol=0)
    assert torch.equal(object_boxes(found + 1e6, 32, 32), object_boxes(found, 32, 32))


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (5, 4), (7, 7)])
@pytest.mark.parametrize("seed", range(4))
def test_plain_loops_find_the_same_box(shape: tuple[int, int], seed: int) -> None:
    found = maps(seed, 3, 2, *shape)
    boxes = object_boxes(found, 48, 60)
    for mass, box, features in zip(walk(found), boxes.tolist(), found.numpy(), strict=True):
        np.testing.assert_allclose(mass, walked(features), rtol=1e-9)
        assert tuple(box) == object_box(features, 48, 60)


def test_plain_loops_cut_the_same_crop() -> None:
    images, found = maps(3, 2, 3, 12, 14), maps(4, 2, 3, 4, 4)
    crops = crop_to_object(images, found)
    for image, features, crop in zip(images.numpy(), found.numpy(), crops.numpy(), strict=True):
        box = object_box(features, 12, 14)
        assert box != (0, 0, 14, 12)
        expected = [resized(channel, box, 12, 14) for channel in image]
        np.testing.assert_allclose(crop, expected, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.3])
def test_a_map_without_an_object_gives_the_whole_image(value: float) -> None:
    images = maps(5, 2, 3, 9, 9).float()
    for shape in ((2, 8, 4, 4), (2, 8, 1, 1)):
        found = torch.full(shape, value)
        assert object_boxes(found, 9, 9).tolist() == [[0, 0, 9, 9]] * 2
        torch.testing.assert_close(crop_to_object(images, found), images, rtol=0, atol=1e-5)
    found = torch.randn(2, 99, 1, 1, dtype=torch.float64).expand(-1, -1, 7, 7)  # rounds
    assert object_boxes(found, 9, 9).tolist() == [[0, 0, 9, 9]] * 2
    broken = torch.full((2, 8, 4, 4), float("nan"))
    assert object_boxes(broken, 9, 9).tolist() == [[0, 0, 9, 9]] * 2


def test_the_crop_follows_the_object() -> None:
    """One place that differs, near a corner, gives a square around it that ends at the border."""
    found = torch.zeros(4, 1, 7, 7)
    for image, (y, x) in enumerate([(3, 3), (3, 5), (0, 0), (6, 2)]):
        found[image, 0, y, x] = 1.0
    left, top, right, bottom = object_boxes(found, 70, 70).unbind(1)
    assert torch.equal(left < torch.tensor([35, 55, 5, 25]), torch.ones(4, dtype=torch.bool))
    assert torch.equal(right > torch.tensor([35, 55, 5, 25]), torch.ones(4, dtype=torch.bool))
    assert (left[0] + right[0], top[0] + bottom[0]) == (70, 70)
    assert right[0] - left[0] == bottom[0] - top[0] < 70
    assert (left[2], top[2], bottom[3]) == (0, 0, 70)


@pytest.mark.parametrize("corner", [0.2, 1.0, 5.0])
def test_places_across_a_corner_are_connected_over_the_saddle_alone(corner: float) -> None:
    """With 1 on a diagonal and -c on the other, the map between has its saddle at (1 - c²) / ..."""
    height = torch.tensor([[[1.0, -corner, -9.0], [-corner, 1.0, -9.0], [-9.0, -9.0, 2.0]]])
    found = pieces(height)[0]
    assert (found[0, 0] == found[1, 1]) == (corner <= 1.0)
    assert found[2, 2] not in (0, found[1, 1])
    assert found[0, 1] == found[1, 0] == found[0, 2] == 0


def test_the_largest_piece_is_found_along_any_way() -> None:
    """A spiral, whose ends are as far from each other as they can be."""
    spiral = """
        #######
        ......#
        #####.#
        #...#.#
        #.###.#
        #.....#
        #######"""
    rows = [[float(place == "#") for place in row] for row in spiral.split()]
    mass = torch.tensor(rows).double()[None]
    mass[0, 3, 2] = 1.0  # next to the spiral's inner end
    enlarged = largest_piece(mass, 70, 70)[0]
    assert all(
        enlarged[10 * y + 5, 10 * x + 5] == mass[0, y, x] for y in range(7) for x in range(7)
    )


def test_images_of_a_batch_do_not_depend_on_each_other() -> None:
    images, found = maps(6, 5, 3, 20, 20).float(), maps(7, 5, 8, 4, 4).float()
    together = crop_to_object(images, found)
    alone = [crop_to_object(images[i : i + 1], found[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_a_crop_has_no_gradient() -> None:
    images, found = maps(8, 2, 3, 8, 8), maps(9, 2, 3, 4, 4)
    assert not crop_to_object(images.requires_grad_(), found.requires_grad_()).requires_grad
