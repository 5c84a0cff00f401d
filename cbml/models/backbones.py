"""The backbones: how each is built, what it gives, and what it expects of its images."""

import difflib
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cbml.errors import BadData, MissingExtra, nearest
from cbml.models.bn_inception import BNInception
from cbml.models.preprocessing import Preprocessing
from cbml.models.table import BACKBONES

_IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_SYMMETRIC = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # numbers from -1 to 1
_CAFFE = Preprocessing(mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0), scale=1.0, order="BGR")

_RESNET = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
_GOOGLENET = (
    *("conv1", "maxpool1", "conv2", "conv3", "maxpool2", "inception3a", "inception3b", "maxpool3"),
    *("inception4a", "inception4b", "inception4c", "inception4d", "inception4e", "maxpool4"),
    *("inception5a", "inception5b"),
)


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A network that turns images into features.

    Args:
        build: Gives the network that turns images into a map (B, C, H, W), or into vectors (B, C)
            when it is called with the pooling "backbone".
        features: Number of features it gives, C.
        preprocessing: What its pretrained weights expect.
        pooling: The one used in the paper, or by its authors.
        weights: Source of the weights when none is named.
        imagenet: Who publishes its ImageNet weights, and the name of the model there or the address
            of the file; None where nobody does.
        classifier: Beginnings of the names that belong to the classifier in public weights and are
            left out when they are loaded.
        prefix: What stands before a public weight's name inside the built network.
        levels: The modules behind which heads of the levels "low" and "middle" read; see `Head`.
    """

    build: Callable[[str], nn.Module]
    features: int
    preprocessing: Preprocessing
    pooling: str = "average"
    weights: str = "imagenet"
    imagenet: tuple[str, str] | None = None
    classifier: tuple[str, ...] = ("fc.",)
    prefix: str = ""
    levels: tuple[str, str] | None = None


def find_backbone(name: str) -> Backbone:
    """The backbone of that name; "timm:<name>" reaches every architecture of timm.

    Args:
        name: A key of BACKBONES, or "timm:" and the name of a timm model.
    """
    if name.startswith("timm:"):
        return _timm_backbone(name.removeprefix("timm:"))
    if name in BACKBONES:
        return BACKBONES[name]
    if ":" in name:
        raise BadData(
            f"the backbone {name} is code, which a file never chooses; repeat it: --backbone {name}"
        )
    hint = nearest(name, BACKBONES)
    raise BadData(f"backbone {name!r}: no such backbone; {hint}; others by 'timm:<name>'")


def add_backbone(name: str, build: Callable[[], nn.Module]) -> None:
    """Enter a network of your own into BACKBONES, for as long as the process lives.

    It is built once to see how many features it gives. Its images are normalized as those of
    ImageNet, unless the network has an attribute `preprocessing`.

    Args:
        name: Name to find it by; models trained with it ask for the same name when loaded.
        build: Gives the network, random or with weights: images (B, 3, H, W) -> a map
            (B, C, H, W) or vectors (B, C).
    """
    with torch.random.fork_rng(devices=[]):
        network = build()
    if not isinstance(network, nn.Module):
        raise BadData(f"backbone {name}: gave {type(network).__name__}, not a torch.nn.Module")
    preprocessing = getattr(network, "preprocessing", _IMAGENET)
    side = preprocessing.crop
    with torch.no_grad():
        found = network.eval()(torch.zeros(1, 3, side, side))
    if not isinstance(found, Tensor) or found.dim() not in (2, 4) or len(found) != 1:
        raise BadData(f"backbone {name}: must give a map (B, C, H, W) or vectors (B, C)")
    BACKBONES[name] = Backbone(
        build=lambda pooling: build(),
        features=found.shape[1],
        preprocessing=preprocessing,
        weights="own",
        classifier=(),
    )


class _Conv4(nn.Sequential):
    """Four 3×3 convolutions of 64 maps, each halving the image; learns on a CPU in seconds."""

    def __init__(self) -> None:
        widths = (3, 64, 64, 64, 64)
        layers: list[nn.Module] = []
        for incoming, outgoing in itertools.pairwise(widths):
            layers += [
                nn.Conv2d(incoming, outgoing, 3, padding=1, bias=False),
                nn.BatchNorm2d(outgoing),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(2, ceil_mode=True),  # rounding up lets images of one pixel through
            ]
        super().__init__(*layers)


class _TimmFeatures(nn.Module):
    """A timm network without its classifier, pooled its own way or not at all."""

    def __init__(self, name: str, pooling: str) -> None:
        super().__init__()
        timm = import_timm()
        own = pooling == "backbone"
        try:
            options: dict[str, Any] = {} if own else {"global_pool": ""}
            self.network = timm.create_model(name, num_classes=0, pretrained=False, **options)
        except AssertionError:
            raise BadData(
                f"timm:{name} cannot be used without its own pooling; use pooling='backbone'"
            ) from None
        self.channels_last_map = getattr(self.network, "output_fmt", "NCHW") == "NHWC"

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images)
        if features.dim() == 3:  # tokens (B, N, C): those in front stand for no place
            tokens = features[:, getattr(self.network, "num_prefix_tokens", 0) :]
            return tokens.transpose(1, 2).unsqueeze(-1)
        if features.dim() == 4 and self.channels_last_map:
            return features.permute(0, 3, 1, 2)
        return features


def import_timm() -> Any:
    """The package timm, or one line that says how to install it."""
    try:
        import timm
    except ImportError:
        raise MissingExtra("timm", "timm") from None
    return timm


def import_torchvision_models() -> Any:
    """The package torchvision.models, where it is needed: importing it takes longer than torch."""
    from torchvision import models

    return models


def _resnet(depth: int, features: int, *, stride_first: bool = False) -> Backbone:
    def build(pooling: str) -> nn.Module:
        del pooling
        network = getattr(import_torchvision_models(), f"resnet{depth}")(weights=None)
        if stride_first:
            for layer in (network.layer2, network.layer3, network.layer4):
                layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
        return _in_sequence(network, _RESNET)

    return Backbone(
        build=build,
        features=features,
        preprocessing=_IMAGENET,
        imagenet=None if stride_first else ("torchvision", f"resnet{depth}"),
        levels=("layer2", "layer3"),
    )


def _build_googlenet(pooling: str) -> nn.Module:
    del pooling
    network = import_torchvision_models().GoogLeNet(
        aux_logits=False, transform_input=False, init_weights=True
    )
    return _in_sequence(network, _GOOGLENET)


def _in_sequence(network: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """The named children, one after the other: torchvision's names, without its classifier."""
    return nn.Sequential(OrderedDict((name, getattr(network, name)) for name in names))


def _timm_backbone(name: str) -> Backbone:
    timm = import_timm()
    if not timm.is_model(name):  # also keeps out names that would fetch foreign repositories
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"did you mean 'timm:{near[0]}'?" if near else "see timm.list_models()"
        raise BadData(f"unknown backbone 'timm:{name}': {hint}")
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # the architecture exists, its tag behind the dot does not
        raise BadData(f"unknown backbone 'timm:{name}': {error}") from None
    probe = _on_no_device(name)
    return Backbone(
        build=lambda pooling: _TimmFeatures(name, pooling),
        features=int(getattr(probe, "head_hidden_size", None) or probe.num_features),
        preprocessing=Preprocessing(mean=config.mean, std=config.std).with_crop(
            int(config.input_size[-1])
        ),
        pooling="backbone",
        imagenet=("timm", name),
        classifier=_classifier_names(config.classifier),
        prefix="network.",
    )


def _on_no_device(name: str) -> Any:
    """A timm network whose parameters have shapes but no memory."""
    with torch.device("meta"):
        return import_timm().create_model(name, num_classes=0, pretrained=False)


def _classifier_names(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names or ())
    return tuple(f"{name}." for name in listed)


RESNET18 = _resnet(18, 512)
RESNET34 = _resnet(34, 512)
RESNET50 = _resnet(50, 2048)
RESNET101 = _resnet(101, 2048)
RESNET152 = _resnet(152, 2048)
# The first version of ResNet halves the map in the 1×1 convolution of a block; torchvision's in
# the 3×3. Shapes and names are the same, so weights of one load into the other and are wrong.
RESNET50_V1 = _resnet(50, 2048, stride_first=True)
GOOGLENET = Backbone(
    build=_build_googlenet,
    features=1024,
    preprocessing=_IMAGENET,
    imagenet=("torchvision", "googlenet"),
    classifier=("fc.", "aux1.", "aux2."),
    levels=("inception4a", "inception4d"),  # where its auxiliary classifiers are
)
BN_INCEPTION = Backbone(
    build=lambda pooling: BNInception(),
    features=1024,
    preprocessing=_CAFFE,
    pooling="max",
    imagenet=(
        "Cadene's bn_inception",
        "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
    ),
    classifier=("last_linear.",),
    levels=("inception_3c_output", "inception_4e_output"),  # the same
)
EFFICIENTNET_LITE0 = Backbone(
    build=lambda pooling: _TimmFeatures("tf_efficientnet_lite0", pooling),
    features=1280,
    preprocessing=_SYMMETRIC.with_crop(224),
    weights="package",
    imagenet=("timm", "tf_efficientnet_lite0"),
    classifier=("classifier.",),
    prefix="network.",
    levels=("network.blocks.2", "network.blocks.4"),
)
CONV4 = Backbone(
    build=lambda pooling: _Conv4(),
    features=64,
    preprocessing=_SYMMETRIC.with_crop(32),
    weights="none",
    classifier=(),
    levels=("7", "11"),
)
