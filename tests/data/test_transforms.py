"""Crops as torchvision draws them, pixels as the backbones expect them."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from cbml.data.transforms import (
    Normalization,
    TrainTransform,
    resized_short_side,
    short_side,
)
from cbml.errors import BadData

SIZES = [(256, 341), (341, 256), (256, 256), (256, 1000), (2304, 256), (256, 257)]


def image(height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (3, 9, 9), dtype=np.uint8)
    return v2.functional.resize(torch.from_numpy(small), [height, width], antialias=True)


def test_the_short_side_keeps_the_papers_proportion() -> None:
    assert [short_side(crop) for crop in (227, 224, 96, 64, 1)] == [256, 253, 108, 72, 1]
    with pytest.raises(BadData, match="crop=0"):
        short_side(0)


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (72, 72), (100, 31), (3, 7)])
def test_resizing_is_torchvisions(size: tuple[int, int]) -> None:
    pixels = image(*size)
    expected = v2.Resize(256, antialias=True)(pixels)
    assert torch.equal(resized_short_side(pixels, 256), expected)


def torchvision_boxes(size: tuple[int, int], count: int) -> np.ndarray:
    crop = v2.RandomResizedCrop(227, scale=(0.16, 1.0))
    flat = torch.empty((3, *size), dtype=torch.uint8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = [crop.make_params([flat]) for _ in range(count)]
    return np.array([[p["top"], p["left"], p["height"], p["width"]] for p in drawn])


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """Kolmogorov-Smirnov: the largest gap between the two distribution functions."""
    grid = np.unique(np.concatenate([first, second]))
    below = [
        np.searchsorted(np.sort(values), grid, "right") / len(values) for values in (first, second)
    ]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize("size", SIZES)
def test_random_parts_are_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    count = 3_000
    transform = TrainTransform()
    uniform = np.random.default_rng(1).random((count, transform.draws))
    ours, mirrored = transform.boxes(np.tile(size, (count, 1)), uniform)
    theirs = torchvision_boxes(size, count)
    for column in range(4):
        assert distance(ours[:, column], theirs[:, column]) < 0.05  # the 0.1 % level is 0.050
    assert distance(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < 0.05
    assert distance(ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2]) < 0.05
    assert 0.46 < mirrored.mean() < 0.54
    inside = (ours[:, :2] >= 0).all() and (ours[:, :2] + ours[:, 2:] <= np.array(size)).all()
    assert inside
    assert (ours[:, 2:] > 0).all()


def test_a_part_becomes_the_square_that_torchvision_makes_of_it() -> None:
    pixels = image(256, 341)
    transform = TrainTransform()
    square = transform.cut(pixels, np.array([20, 30, 190, 140]), False)
    expected = v2.functional.resized_crop(pixels, 20, 30, 190, 140, [227, 227], antialias=True)
    assert torch.equal(square, expected)
    assert torch.equal(transform.cut(pixels, np.array([20, 30, 190, 140]), True), expected.flip(-1))


def test_a_crop_follows_from_its_generator_alone() -> None:
    pixels = image(300, 400)
    first, again, other = (
        TrainTransform(crop=64)(pixels, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    assert first.shape == (3, 64, 64)
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    before = torch.random.get_rng_state()
    TrainTransform()(pixels, np.random.default_rng(0))
    assert torch.equal(before, torch.random.get_rng_state()), "nobody touches global state"


@pytest.mark.parametrize("size", [(1, 65_500), (65_500, 1), (1, 1), (2, 900)])
def test_lines_and_dots_stay_small(size: tuple[int, int]) -> None:
    pixels = torch.full((3, *size), 9, dtype=torch.uint8)
    assert resized_short_side(pixels, 256).numel() <= 3 * 256 * 256 * 9
    square = TrainTransform()(pixels, np.random.default_rng(0))
    assert square.shape == (3, 227, 227)
    assert (square == 9).all()


def test_cutting_a_long_image_first_leaves_the_same_part() -> None:
    long = image(64, 64 * 20)
    transform = TrainTransform(crop=57)
    boxes, _ = transform.boxes(np.array([[64, 64 * 20]]), np.full((1, 23), 0.5))
    expected = transform.cut(long, boxes[0], False)
    boxes, _ = transform.boxes(np.array([[64, 64 * 9]]), np.full((1, 23), 0.5))
    assert torch.equal(transform.cut(resized_short_side(long, 64), boxes[0], False), expected)


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        (
            Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            [(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0.2 - 0.406) / 0.225],
        ),
        (Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), [1.0, -1.0, -0.6]),
        (
            Normalization((104.0, 117.0, 128.0), (1.0, 1.0, 1.0), scale=1.0, order="BGR"),
            [51 - 104.0, 0 - 117.0, 255 - 128.0],
        ),
    ],
    ids=["torchvision", "[-1, 1]", "Caffe"],
)
def test_normalizations_by_hand(normalization: Normalization, expected: list[float]) -> None:
    pixels = torch.tensor([[[[255]], [[0]], [[51]]]], dtype=torch.uint8)  # red 255, blue 51
    found = normalization(pixels)
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == pytest.approx(expected, abs=1e-5)


def test_an_unknown_order_of_channels_is_refused() -> None:
    with pytest.raises(BadData, match="order='RBG'"):
        Normalization((0, 0, 0), (1, 1, 1), order="RBG")


def test_the_range_of_areas_and_the_share_of_flips_are_parameters() -> None:
    sizes = np.tile([[256, 256]], (400, 1))
    uniform = np.random.default_rng(0).random((400, 23))
    boxes, mirrored = TrainTransform(scale=(0.5, 0.6), flip=0.0).boxes(sizes, uniform)
    areas = boxes[:, 2] * boxes[:, 3] / 256**2
    assert 0.49 < areas.min() < areas.max() < 0.61
    assert not mirrored.any()
    assert TrainTransform(flip=1.0).boxes(sizes, uniform)[1].all()
