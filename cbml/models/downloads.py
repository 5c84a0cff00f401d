"""Weights files: downloads whose hash is checked, and reading that cannot run code."""

import re
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import safetensors.torch
import torch
import torchvision
from torch import Tensor, nn

from cbml.errors import BadData, DamagedFile
from cbml.files import sha256
from cbml.models.backbones import import_timm

_BN_INCEPTION = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"
_TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "googlenet")

Tensors = dict[str, Tensor]


def read_tensors(path: Path) -> Tensors:
    """The named tensors of a .safetensors, .pt, .pth or .bin file; nothing in it is run.

    Args:
        path: the file.
    """
    if not path.is_file():
        raise BadData(f"{path}: no such file; give the path of a .safetensors, .pt or .pth file")
    if path.suffix not in (".safetensors", ".pt", ".pth", ".bin"):
        raise BadData(f"{path}: not a kind of weights file we read (.safetensors, .pt, .pth, .bin)")
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
        raise DamagedFile(f"{path}: holds something else than named tensors; give a state dict")
    return {key.removeprefix("module."): value for key, value in content.items()}


def download(name: str) -> tuple[Tensors, str]:
    """A backbone's public ImageNet weights and one line that says which; the hash is checked.

    Args:
        name: the backbone's name.
    """
    if name == "bn_inception":
        url, label = _BN_INCEPTION, "Cadene's bn_inception"
    elif name in _TORCHVISION:
        weights = torchvision.models.get_model_weights(name).IMAGENET1K_V1
        url, label = weights.url, f"torchvision {weights}"
    elif name == "efficientnet_lite0":
        return _download_timm(name, "tf_efficientnet_lite0")
    elif name.startswith("timm:"):
        return _download_timm(name, name.removeprefix("timm:"))
    else:
        raise BadData(
            f"{name}: no ImageNet weights to download; use weights='none' or 'path:<file>'"
        )
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    prefix = re.findall(r"-([a-f0-9]{8,})\.", path.name)[0]
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), prefix, progress=sys.stderr.isatty())
        except OSError as error:
            raise _unreachable(name, url, error) from None
        except RuntimeError:  # torch's word for a wrong hash
            raise DamagedFile(f"{url}: what came has another hash; try again later") from None
    digest = sha256(path)
    if not digest.startswith(prefix):
        raise DamagedFile(f"{path}: altered since its download; delete it and try again")
    return read_tensors(path), f"imagenet: {label}, sha256 {digest[:16]}"


def _download_timm(name: str, architecture: str) -> tuple[Tensors, str]:
    timm = import_timm()
    facts = timm.get_pretrained_cfg(architecture)
    if not facts.hf_hub_id:
        raise BadData(f"{name} has no pretrained weights; use weights='none' or 'path:<file>'")
    path = _hub_file(name, facts.hf_hub_id)
    digest = sha256(path)
    # The hub names a large file's blob by its SHA-256; its client does not compare them.
    if len(path.resolve().name) == 64 and path.resolve().name != digest:
        raise DamagedFile(f"{path.resolve()}: not what the hub announced; delete it and try again")
    overlay = {"state_dict": read_tensors(path), "custom_load": False}
    network = timm.create_model(
        architecture, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay
    )
    return dict(network.state_dict()), f"imagenet: {facts.hf_hub_id}, sha256 {digest[:16]}"


def _hub_file(name: str, repository: str) -> Path:
    """The weights file that timm's repositories keep for every model, from the cache or the hub."""
    from huggingface_hub import constants, hf_hub_download  # timm depends on it
    from huggingface_hub.errors import LocalEntryNotFoundError

    file = "model.safetensors"
    try:
        return Path(hf_hub_download(repository, file, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        # Without a network the client would look for its host for 23 seconds, warning each time.
        if not urllib.request.getproxies():
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
        return Path(hf_hub_download(repository, file))
    except (OSError, RuntimeError) as error:
        raise _unreachable(name, f"{constants.ENDPOINT}/{repository}", error) from None


def _unreachable(name: str, place: str, error: Exception) -> ConnectionError:
    package = "" if name == "efficientnet_lite0" else " with backbone 'efficientnet_lite0'"
    reason = " ".join(str(error).split())[:80]
    return ConnectionError(
        f"{name}: cannot download ImageNet weights from {place} ({reason}); without a network use "
        f"weights='package'{package}, weights='path:<file>' or weights='none'"
    )
