"""Object attention in plain loops: the walk over a map, the largest piece of it, and the crop."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float64]
Box = tuple[int, int, int, int]


def walked(features: Floats, steps: int = 10) -> Floats:
    """The mass of each place after a walk over a map. (C, h, w) -> (h, w)"""
    _, height, width = features.shape
    places = [(y, x) for y in range(height) for x in range(width)]
    sigma = 0.15 * max(height, width)
    rates = [
        [
            math.dist(features[:, *p], features[:, *q])
            * math.exp(-(math.dist(p, q) ** 2) / (2 * sigma**2))
            for q in places
        ]
        for p in places
    ]
    mass = [1 / len(places)] * len(places)
    for _ in range(steps):
        leaving = [sum(rates[j][k] for j in range(len(places))) for k in range(len(places))]
        mass = [
            sum(rates[j][k] / leaving[k] * mass[k] for k in range(len(places)))
            for j in range(len(places))
        ]
    return np.array(mass).reshape(height, width)


def between(line: Floats, position: float, first: int, last: int) -> float:
    """A line of numbers at a position, linear between the two beside it."""
    position = min(max(position, first), last)
    low = math.floor(position)
    high = min(low + 1, last)
    return float((1 - (position - low)) * line[low] + (position - low) * line[high])


def resized(values: Floats, box: Box, height: int, width: int) -> Floats:
    """A box of a picture at another size, by linear interpolation. (H, W) -> (height, width)"""
    left, top, right, bottom = box
    found = np.empty((height, width))
    for y in range(height):
        row = top + (y + 0.5) * (bottom - top) / height - 0.5
        line = np.array([between(column, row, top, bottom - 1) for column in values.T])
        for x in range(width):
            column = left + (x + 0.5) * (right - left) / width - 0.5
            found[y, x] = between(line, column, left, right - 1)
    return found


def object_box(features: Floats, height: int, width: int) -> Box:
    """Left, top, right and bottom of the crop of an image with that map."""
    whole = (0, 0, width, height)
    if all((channel == channel[0, 0]).all() for channel in features):
        return whole
    mass = walked(features)
    enlarged = resized(mass, (0, 0, mass.shape[1], mass.shape[0]), height, width)
    labels, count = ndimage.label(enlarged > enlarged.mean(), structure=np.ones((3, 3)))
    sizes = [(labels == label).sum() for label in range(1, count + 1)]
    ys, xs = np.nonzero(labels == 1 + sizes.index(max(sizes)))
    left, top = int(xs.min()), int(ys.min())
    wide, high = int(xs.max()) - left + 1, int(ys.max()) - top + 1
    side = away((wide + high) / 2)
    left, top = left + away((wide - high) / 4), top + away((high - wide) / 4)
    right, bottom = min(left + side, width), min(top + side, height)
    return max(left, 0), max(top, 0), right, bottom


def away(number: float) -> int:
    """The nearest whole number, halves away from zero."""
    return int(math.copysign(math.floor(abs(number) + 0.5), number))
