"""Object attention: the part of an image in which its map of features stands out, and a crop of it.

With F the features of a map's n places, p their positions, N its longer side and σ = 0.15 N:

    d_jk = |F_j - F_k| exp(-|p_j - p_k|² / 2σ²),  T_jk = d_jk / Σ_j d_jk
    M    = T¹⁰ (1/n, ..., 1/n)

M, enlarged to the image, is cut at its mean. Around the largest piece above it lies a box, and the
crop is the square of the box's mean side and center, as far as it is within the image. An image
whose map is the same everywhere is its own crop. Nothing here has a gradient, all of it has a
fixed number of operations, and one image does not depend on another.
"""

import torch
from torch import Tensor
from torch.nn import functional

_STEPS = 10
_REACH = 0.15


@torch.no_grad()
def crop_to_object(images: Tensor, found: Tensor) -> Tensor:
    """The crop of each image, at the size of the image. (B, 3, H, W)

    Args:
        images: (B, 3, H, W)
        found: The map of each. (B, C, h, w)
    """
    height, width = images.shape[-2:]
    with torch.autocast(images.device.type, enabled=False):
        left, top, right, bottom = object_boxes(found, height, width).unbind(1)
        rows, columns = _samples(top, bottom, height), _samples(left, right, width)
        # From pixels to shares of the image, -1 to 1 from edge to edge.
        rows, columns = (2 * rows + 1) / height - 1, (2 * columns + 1) / width - 1
        shape = (-1, height, width)
        places = [columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)]
        # A crop has at most the image's pixels, so that there is nothing to smooth away first.
        return functional.grid_sample(
            images, torch.stack(places, dim=3).to(images.dtype), align_corners=False
        )


def object_boxes(found: Tensor, height: int, width: int) -> Tensor:
    """Left, top, right and bottom of the crop in pixels, the last two exclusive. (B, 4)

    Args:
        found: The map of each image. (B, C, h, w)
        height: Of the images.
        width: Of the images.
    """
    # Doubles, where there are any: rounding should not move a box by a pixel.
    found = found.float() if found.device.type == "mps" else found.double()
    mass = scaled(walk(found))  # (B, h, w)
    chosen = largest_piece(mass, height, width)  # (B, H, W)
    left, right = _extent(chosen.any(dim=1))
    top, bottom = _extent(chosen.any(dim=2))
    wide, high = right - left, bottom - top
    side = _rounded((wide + high) / 2)
    left, top = left + _rounded((wide - high) / 4), top + _rounded((high - wide) / 4)
    right, bottom = (left + side).clamp(max=width), (top + side).clamp(max=height)
    box = torch.stack([left.clamp(min=0), top.clamp(min=0), right, bottom], dim=1)
    whole = torch.tensor([0, 0, width, height], device=box.device)
    somewhere = chosen.flatten(1).any(dim=1)  # not in a map that is alike everywhere
    return torch.where(somewhere[:, None], box, whole)


def walk(found: Tensor, steps: int = _STEPS) -> Tensor:
    """M: where a walk from place to place, which prefers unlike neighbors, ends. (B, h, w)

    Args:
        found: (B, C, h, w)
        steps: Of the walk.
    """
    height, width = found.shape[-2:]
    flat = found.flatten(2)  # (B, C, n)
    flat = flat - flat.mean(dim=2, keepdim=True)  # far from zero, differences would drown
    squares = flat.square().sum(dim=1)
    distances = squares[:, :, None] + squares[:, None] - 2.0 * flat.transpose(1, 2) @ flat
    y, x = _positions(height, width, found.device)
    apart = (y[:, None] - y).square() + (x[:, None] - x).square()  # (n, n)
    near = torch.exp(-apart.to(found.dtype) / (2.0 * (_REACH * max(height, width)) ** 2))
    weights = distances.clamp(min=0.0).sqrt() * near * (apart > 0)
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(found.dtype).tiny)
    mass = torch.full_like(flat[:, 0], 1.0 / (height * width))[:, :, None]  # (B, n, 1)
    for _ in range(steps):
        mass = weights @ mass
    return mass.view(-1, height, width)


def scaled(mass: Tensor) -> Tensor:
    """The same from 0 to 1; all zero where it is alike everywhere. (B, h, w)"""
    least, most = mass.amin(dim=(1, 2), keepdim=True), mass.amax(dim=(1, 2), keepdim=True)
    return (mass - least) / (most - least).clamp(min=torch.finfo(mass.dtype).tiny)


def largest_piece(mass: Tensor, height: int, width: int) -> Tensor:
    """Pixels of the largest connected piece in which the enlarged map is above its mean. (B, H, W)

    Args:
        mass: (B, h, w)
        height: To which it is enlarged, bilinearly.
        width: To which it is enlarged.
    """
    rows, columns = (
        _samples(mass.new_zeros(1), mass.new_full((1,), places), pixels)
        for places, pixels in zip(mass.shape[1:], (height, width), strict=True)
    )
    stretched = _interpolation(rows, mass.shape[1]) @ mass  # (B, H, w)
    enlarged = stretched @ _interpolation(columns, mass.shape[2]).transpose(1, 2)  # (B, H, W)
    mean = enlarged.mean(dim=(1, 2), keepdim=True)
    labels = pieces(mass - mean)  # (B, h, w)
    # Along a row the enlarged map falls or rises evenly from place to place, and so it does along a
    # column of places: uphill, a pixel above the mean reaches a place of its piece.
    labels = _uphill(stretched, _uphill(mass, labels, rows, 1), columns, 2)  # (B, H, W)
    labels = torch.where(enlarged > mean, labels, 0)
    sizes = torch.zeros(mass.shape[0], mass[0].numel() + 1, device=mass.device)
    counted = labels.flatten(1)
    sizes = sizes.scatter_add(1, counted, torch.ones_like(counted, dtype=sizes.dtype))
    largest = sizes[:, 1:].argmax(dim=1) + 1
    return labels == largest[:, None, None]


def pieces(height: Tensor) -> Tensor:
    """A number for each place above zero, the same for those that are connected; else 0. (B, h, w)

    Places side by side are connected where both are above zero. So are two across a corner, a and d
    with b and c on the other diagonal, where a d ≥ b c: then the bilinear map between the four is
    above zero on a way from a to d.

    Args:
        height: (B, h, w)
    """
    y, x = _positions(height.shape[1], height.shape[2], height.device)
    flat = height.flatten(1)  # (B, n)
    touching = ((y[:, None] - y).abs() <= 1) & ((x[:, None] - x).abs() <= 1)  # (n, n)
    across = y[:, None] * height.shape[2] + x  # the place in the row of one, the column of another
    others = flat[:, across]  # (B, n, n)
    above = flat > 0
    joined = flat[:, :, None] * flat[:, None] >= others * others.transpose(1, 2)
    reached = (touching & above[:, :, None] & above[:, None] & joined).float()
    for _ in range((flat.shape[1] - 1).bit_length()):  # each time, ways of twice the length
        reached = (reached @ reached > 0).float()
    numbers = torch.arange(1, flat.shape[1] + 1, device=flat.device)
    return (reached.long() * numbers).amax(dim=2).view_as(height)


def _positions(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of each place, row by row. (n,) each"""
    places = torch.arange(height * width, device=device)
    return places // width, places % width


def _samples(start: Tensor, stop: Tensor, count: int) -> Tensor:
    """Where so many samples between two edges lie, in pixels; the outermost not beyond. (B, count)

    Args:
        start: First pixel. (B,)
        stop: Behind the last. (B,)
    """
    dtype = start.dtype if start.is_floating_point() else torch.float32
    start, stop = start[:, None].to(dtype), stop[:, None].to(dtype)
    steps = torch.arange(count, device=start.device, dtype=dtype) + 0.5
    inside = start + steps * (stop - start) / count - 0.5
    return torch.maximum(torch.minimum(inside, stop - 1.0), start)


def _interpolation(samples: Tensor, count: int) -> Tensor:
    """The weights of so many pixels in linear interpolation at each sample. (B, S, count)

    Args:
        samples: (B, S)
    """
    pixels = torch.arange(count, device=samples.device, dtype=samples.dtype)
    return (1.0 - (samples[:, :, None] - pixels).abs()).clamp(min=0.0)


def _uphill(values: Tensor, labels: Tensor, samples: Tensor, dim: int) -> Tensor:
    """For each sample along a dimension, the label of the higher of its two neighbors.

    Args:
        values: Heights. (B, ..., n, ...)
        labels: Of the same shape.
        samples: Positions along the dimension. (1, S)
    """
    count = values.shape[dim]
    after = torch.arange(1, count + 1, device=values.device).clamp(max=count - 1)
    falls = values >= values.index_select(dim, after)
    higher = torch.where(falls, labels, labels.index_select(dim, after))
    return higher.index_select(dim, samples[0].floor().long())


def _extent(present: Tensor) -> tuple[Tensor, Tensor]:
    """The first of those present, and the one behind the last. (B,) each

    Args:
        present: (B, S)
    """
    numbers = torch.arange(present.shape[1], device=present.device)
    first = torch.where(present, numbers, present.shape[1]).amin(dim=1)
    return first, torch.where(present, numbers, -1).amax(dim=1) + 1


def _rounded(number: Tensor) -> Tensor:
    """Whole numbers, halves away from zero. (B,)"""
    return (number.sign() * (number.abs() + 0.5).floor()).long()
