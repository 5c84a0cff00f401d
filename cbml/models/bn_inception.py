"""BN-Inception, the backbone of most metric-learning tables, which torchvision and timm lack.

Inception with batch normalization (Ioffe and Szegedy 2015) as it is known from Caffe: 224 × 224 BGR
images on a scale of 0 to 255 become 1024 maps of 7 × 7. Every layer carries the name it has in
the public `bn_inception` state dict, so that this file's weights load strictly.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData


class _Block(NamedTuple):
    """Widths of one inception block; a block without a 1×1 branch halves the map."""

    name: str
    one: int  # 1×1
    three: tuple[int, int]  # 1×1 reduction, 3×3
    double: tuple[int, int]  # 1×1 reduction, two 3×3
    pool: Literal["average", "max"]
    projection: int  # 1×1 behind the pool

    @property
    def halves(self) -> bool:
        return self.one == 0

    def width(self, incoming: int) -> int:
        """Channels that leave the block."""
        pooled = incoming if self.halves else self.projection
        return self.one + self.three[1] + self.double[1] + pooled


_BLOCKS = (
    _Block("3a", 64, (64, 64), (64, 96), "average", 32),
    _Block("3b", 64, (64, 96), (64, 96), "average", 64),
    _Block("3c", 0, (128, 160), (64, 96), "max", 0),
    _Block("4a", 224, (64, 96), (96, 128), "average", 128),
    _Block("4b", 192, (96, 128), (96, 128), "average", 128),
    _Block("4c", 160, (128, 160), (128, 160), "average", 128),
    _Block("4d", 96, (128, 192), (160, 192), "average", 128),
    _Block("4e", 0, (128, 192), (192, 256), "max", 0),
    _Block("5a", 352, (192, 320), (160, 224), "average", 128),
    _Block("5b", 352, (192, 320), (192, 224), "max", 128),
)


class BNInception(nn.Module):
    """The convolutional part of BN-Inception: (B, 3, H, W) -> (B, 1024, H / 32, W / 32)."""

    def __init__(self) -> None:
        super().__init__()
        self._unit("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._unit("conv2_3x3_reduce", 64, 64, 1)
        self._unit("conv2_3x3", 64, 192, 3)
        width = 192
        for block in _BLOCKS:
            self._add(block, width)
            width = block.width(width)

    def forward(self, images: Tensor) -> Tensor:
        """The last map of features.

        Args:
            images: BGR on a scale of 0 to 255, minus the mean.
        """
        features = _halve(self._apply_unit("conv1_7x7_s2", images))
        features = self._apply_unit("conv2_3x3_reduce", features)
        features = _halve(self._apply_unit("conv2_3x3", features))
        for block in _BLOCKS:
            features = self._apply_block(block, features)
            features = self.get_submodule(f"inception_{block.name}_output")(features)
        return features

    def _add(self, block: _Block, incoming: int) -> None:
        name, stride = f"inception_{block.name}", 2 if block.halves else 1
        if not block.halves:
            self._unit(f"{name}_1x1", incoming, block.one, 1)
        self._unit(f"{name}_3x3_reduce", incoming, block.three[0], 1)
        self._unit(f"{name}_3x3", *block.three, 3, stride=stride)
        self._unit(f"{name}_double_3x3_reduce", incoming, block.double[0], 1)
        self._unit(f"{name}_double_3x3_1", *block.double, 3)
        self._unit(f"{name}_double_3x3_2", block.double[1], block.double[1], 3, stride=stride)
        if not block.halves:
            self._unit(f"{name}_pool_proj", incoming, block.projection, 1)
        self.add_module(f"{name}_output", nn.Identity())  # where a head can read the block

    def _unit(self, name: str, incoming: int, outgoing: int, kernel: int, stride: int = 1) -> None:
        # The bias is redundant before batch normalization, but the public weights have one.
        convolution = nn.Conv2d(incoming, outgoing, kernel, stride, padding=kernel // 2)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(torch.as_tensor(convolution.bias))
        self.add_module(name, convolution)
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outgoing))

    def _apply_unit(self, name: str, features: Tensor) -> Tensor:
        convolved = self.get_submodule(name)(features)
        return functional.relu(self.get_submodule(f"{name}_bn")(convolved), inplace=True)

    def _apply_block(self, block: _Block, features: Tensor) -> Tensor:
        name = f"inception_{block.name}"
        branches = [] if block.halves else [self._apply_unit(f"{name}_1x1", features)]
        three = self._apply_unit(f"{name}_3x3_reduce", features)
        branches.append(self._apply_unit(f"{name}_3x3", three))
        double = self._apply_unit(f"{name}_double_3x3_reduce", features)
        double = self._apply_unit(f"{name}_double_3x3_1", double)
        branches.append(self._apply_unit(f"{name}_double_3x3_2", double))
        if block.halves:
            _refuse_odd(features)
            return torch.cat([*branches, _halve(features)], dim=1)
        if block.pool == "average":  # zeros of the border count, as in Caffe
            pooled = functional.avg_pool2d(features, 3, stride=1, padding=1)
        else:
            pooled = functional.max_pool2d(features, 3, stride=1, padding=1)
        return torch.cat([*branches, self._apply_unit(f"{name}_pool_proj", pooled)], dim=1)


def _refuse_odd(features: Tensor) -> None:
    height, width = features.shape[-2:]
    if height % 2 or width % 2:
        raise BadData(
            "bn_inception: the image's sides do not halve evenly; use 224, 227, 256 or another "
            f"multiple of 32 (a map of {height} × {width} was reached)"
        )


def _halve(features: Tensor) -> Tensor:
    # Caffe rounds sizes up; with torch's default of rounding down the maps would not fit together.
    return functional.max_pool2d(features, 3, stride=2, ceil_mode=True)
