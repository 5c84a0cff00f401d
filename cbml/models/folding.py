"""Batch norms with frozen statistics, folded into the convolutions before them.

A frozen batch norm is one scale and one shift for each channel, and so is what a convolution's
weight and bias can do by themselves:

    norm(conv(x)) = conv(x; weight · scale, bias · scale + shift)
    scale = γ / √(variance + ε),   shift = β - mean · scale

The large feature maps are then read and written once less in each direction. Names, parameters and
gradients stay what they were; a norm that is in training mode is computed the usual way. timm's
norms, which also do the activation behind them, and its convolutions that pad as TensorFlow does
are folded in the same way.
"""

import itertools
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_TOLERANCE = 1e-4  # of unit vectors


def fold_batch_norms(model: nn.Module, images: Tensor) -> int:
    """Fold each batch norm into the convolution before it; gives how many were folded.

    Which norm follows which convolution is read from the order of a module's children. The model
    is run before and after: if its output moves, the order was misleading and all is undone.

    Args:
        model: changed in place.
        images: some input for the comparison. (B, 3, H, W)
    """
    found = (pair for module in model.modules() for pair in _pairs(module))
    pairs = [pair for pair in found if "forward" not in vars(pair[0])]  # not folded before
    training = model.training
    model.eval()
    with torch.no_grad():
        before = model(images)
        for convolution, norm in pairs:
            setattr(convolution, "forward", _Folded(convolution, norm))  # noqa: B010
            setattr(norm, "forward", _PassedOn(norm))  # noqa: B010
        after = model(images)
    model.train(training)
    if float((after - before).abs().max()) > _TOLERANCE:
        for convolution, norm in pairs:
            del vars(convolution)["forward"], vars(norm)["forward"]
        return 0
    return len(pairs)


class _Folded:
    """The forward of a convolution that does the work of the norm behind it."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        self.convolution, self.norm = convolution, norm

    def __call__(self, images: Tensor) -> Tensor:
        convolution, norm = self.convolution, self.norm
        if norm.training or norm.running_var is None or norm.running_mean is None:
            plain: Tensor = type(convolution).forward(convolution, images)
            return plain
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)  # (C,)
        shift = norm.bias - norm.running_mean * scale
        if convolution.bias is not None:
            shift = shift + convolution.bias * scale
        weight = convolution.weight * scale[:, None, None, None]
        if type(convolution) is not nn.Conv2d:
            images = sys.modules["timm.layers"].pad_same(
                images, convolution.kernel_size, convolution.stride, convolution.dilation
            )
        result: Tensor = convolution._conv_forward(images, weight, shift)
        return result


class _PassedOn:
    """The forward of a norm whose work is done already, unless it is in training."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        self.norm = norm

    def __call__(self, features: Tensor) -> Tensor:
        norm = self.norm
        if norm.training or norm.running_var is None:
            normed: Tensor = type(norm).forward(norm, features)
            return normed
        for name in ("drop", "act"):  # timm's norms do these, too
            layer = norm._modules.get(name)
            features = features if layer is None else layer(features)
        return features


def _pairs(module: nn.Module) -> Iterator[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    # Exactly these classes: a subclass may do more than its name says.
    convolutions: tuple[type, ...] = (nn.Conv2d,)
    norms: tuple[type, ...] = (nn.BatchNorm2d,)
    layers = sys.modules.get("timm.layers")  # a network of timm has brought it along
    if layers is not None:
        convolutions, norms = (*convolutions, layers.Conv2dSame), (*norms, layers.BatchNormAct2d)
    for first, second in itertools.pairwise(module.children()):
        if type(first) in convolutions and type(second) in norms:
            assert isinstance(first, nn.Conv2d)
            assert isinstance(second, nn.BatchNorm2d)
            padded_plainly = first.padding_mode == "zeros"
            if second.affine and padded_plainly and first.out_channels == second.num_features:
                yield first, second
