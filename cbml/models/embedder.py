"""The model: a backbone, pooling, one linear layer, and a length of one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from cbml.errors import BadData, DamagedFile
from cbml.models.backbones import find_backbone
from cbml.models.pooling import POOLINGS, GeneralizedMean, pool
from cbml.models.preprocessing import Preprocessing
from cbml.models.saved import read_model, write_model
from cbml.models.weights import load_weights

__all__ = ["BATCH_NORMS", "Embedder"]

BATCH_NORMS = ("trained", "frozen_statistics", "frozen")


class Embedder(nn.Module):
    """Pictures to unit vectors.

        features  = pool(backbone(pictures))                (B, C)
        embedding = normalise(features Wᵀ + b)              (B, D)

    W starts kaiming-normal (fan-out), b at zero. Pooling, W and the length are computed in float32
    even under autocast.

    Args:
        backbone: a name in BACKBONES, or "timm:<name>".
        dim: D. 512 in the paper's main tables.
        pooling: "average", "max", "average_max", "generalized_mean", or for timm "backbone", its
            own; "default" takes the paper's for the backbone (max for BN-Inception, else average).
        batch_norm: "trained"; "frozen_statistics", which keeps the running means and variances and
            trains scale and shift, as the authors' program does; or "frozen", both. "default" is
            frozen statistics for pretrained weights and trained for weights="none".
        weights: "imagenet", "package", "none", a Path or "path:<file>"; "default" takes the usual
            source of the backbone.
        preprocessing: another size or normalisation of the pictures than the backbone's own.
        seed: of the head's start values, and of the backbone's where no weights are loaded.
    """

    def __init__(
        self,
        backbone: str = "resnet50",
        *,
        dim: int = 512,
        pooling: str = "default",
        batch_norm: str = "default",
        weights: str | Path = "default",
        preprocessing: Preprocessing | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        row = find_backbone(backbone)
        weights = row.weights if weights == "default" else weights
        if batch_norm == "default":
            batch_norm = "trained" if weights == "none" else "frozen_statistics"
        self.backbone_name, self.dim = backbone, _checked_dim(dim)
        self.pooling = row.pooling if pooling == "default" else pooling
        self.batch_norm = _one_of("batch_norm", batch_norm, BATCH_NORMS)
        _one_of("pooling", self.pooling, POOLINGS if row.prefix else POOLINGS[:-1])
        self.preprocessing = preprocessing or row.preprocessing
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.backbone = row.build(self.pooling)
            self.gem = GeneralizedMean() if self.pooling == "generalized_mean" else None
            self.head = nn.Linear(row.features, dim)
            nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
            nn.init.zeros_(self.head.bias)
        self.provenance = load_weights(self.backbone, backbone, weights)
        if self.batch_norm == "frozen":
            for norm in _batch_norms(self):
                norm.requires_grad_(False)
        self.train()

    def forward(self, pictures: Tensor) -> Tensor:
        """Unit vectors, float32, (B, 3, H, W) -> (B, D).

        Args:
            pictures: float pictures as `preprocessing` describes them.
        """
        features = self.features(pictures)
        with torch.autocast(pictures.device.type, enabled=False):
            return functional.normalize(self.head(features), dim=1)

    def features(self, pictures: Tensor) -> Tensor:
        """Pooled features before the linear layer, float32, (B, 3, H, W) -> (B, C).

        Args:
            pictures: float pictures as `preprocessing` describes them.
        """
        features: Tensor = self.backbone(pictures)
        with torch.autocast(pictures.device.type, enabled=False):
            features = features.float()
            if self.gem is not None:
                features = self.gem(features)
            elif self.pooling != "backbone":
                features = pool(features, self.pooling)
            return features

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation; frozen statistics stay frozen.

        Args:
            mode: True for training.
        """
        super().train(mode)
        if self.batch_norm != "trained":
            for norm in _batch_norms(self):
                norm.eval()
        return self

    def parameter_groups(
        self, learning_rate: float, *, backbone_factor: float = 1.0
    ) -> list[dict[str, Any]]:
        """Two groups for an optimiser, "backbone" and "head", each with its learning rate.

        Args:
            learning_rate: of the head, and of a learnt pooling power.
            backbone_factor: the backbone's learning rate as a multiple of it. The authors' program
                writes 0.1 but trains with 1.
        """
        backbone = [p for p in self.backbone.parameters() if p.requires_grad]
        rest = [
            parameter
            for name, parameter in self.named_parameters()
            if parameter.requires_grad and not name.startswith("backbone.")
        ]
        return [
            {"name": "backbone", "params": backbone, "lr": learning_rate * backbone_factor},
            {"name": "head", "params": rest, "lr": learning_rate},
        ]

    def describe(self) -> dict[str, Any]:
        """Every setting by its name, ready for JSON: what a run records."""
        return {
            "backbone": self.backbone_name,
            "dim": self.dim,
            "pooling": self.pooling,
            "batch_norm": self.batch_norm,
            "preprocessing": self.preprocessing.as_dict(),
            "provenance": self.provenance,
        }

    def save(self, folder: str | Path) -> None:
        """Write the model in one step: an old model in the folder stays whole until then.

        Args:
            folder: made if missing.
        """
        write_model(Path(folder), self.state_dict(), self.describe())

    @classmethod
    def load(cls, folder: str | Path) -> "Embedder":
        """The model saved in a folder, in evaluation mode; damage is refused before it is used.

        Args:
            folder: written by `save`.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise BadData(f"{folder}: no such folder; give one that holds a saved model")
        tensors, facts = read_model(folder)

        def build() -> Embedder:
            return cls(
                facts["backbone"],
                dim=facts["dim"],
                pooling=facts["pooling"],
                batch_norm=facts["batch_norm"],
                weights="none",
                preprocessing=Preprocessing.of(facts["preprocessing"]),
            )

        try:
            with torch.device("meta"):  # shapes first: settings that lie must not fill the memory
                _compare(build().state_dict(), tensors)
        except BadData as error:
            raise DamagedFile(f"{folder}: its settings do not fit its tensors ({error})") from None
        model = build()
        model.load_state_dict(tensors)
        model.provenance = facts["provenance"]
        return model.eval()


def _compare(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for name in sorted(expected.keys() | given.keys()):
        shapes = [tuple(side[name].shape) if name in side else None for side in (expected, given)]
        if shapes[0] != shapes[1]:
            raise BadData(f"{name} should be {shapes[0]}, is {shapes[1]}")


def _batch_norms(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in module.modules() if isinstance(child, _BatchNorm))


def _checked_dim(dim: int) -> int:
    if not (isinstance(dim, int) and 1 <= dim <= 65_536):
        raise BadData(f"dim {dim!r}: the embedding needs between 1 and 65536 numbers")
    return dim


def _one_of(argument: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise BadData(f"{argument} {value!r}: use one of {', '.join(choices)}")
    return value
