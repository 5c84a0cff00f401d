"""The model: a backbone, pooling, one linear layer, and a length of one."""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from cbml.errors import BadData, DamagedFile, check_choice
from cbml.models.backbones import find_backbone
from cbml.models.head_kinds import (
    AttentionHead,
    ChannelAttention,
    FusionHead,
    HeadKind,
    Stream,
    head_as_dict,
    head_of,
    resolve_head,
)
from cbml.models.heads import (
    LAST,
    POOLINGS,
    GeneralizedMean,
    Head,
    Heads,
    cut_cells,
    pool,
    resolve_levels,
)
from cbml.models.object_attention import crop_to_object
from cbml.models.preprocessing import Preprocessing
from cbml.models.weights import load_weights, read_model, write_model
from cbml.outputs import Outputs

BATCH_NORMS = ("trained", "frozen_statistics", "frozen")


class Embedder(nn.Module):
    """Images to unit vectors.

        features  = pool(backbone(images))                (B, C)
        embedding = normalize(features Wᵀ + b)              (B, D)

    W starts kaiming-normal (fan-out), b at zero. Pooling, W and the length are computed in float32
    even under autocast. With `heads` the embedding is put together from several sub-embeddings; see
    `cbml.models.heads`.

    Args:
        backbone: A name in BACKBONES, to which `cbml.models.add_backbone` adds your own, or
            "timm:<name>".
        dim: Width of the embedding, D. 512 in the paper's main tables. With heads it is the sum of
            their widths.
        pooling: "average", "max", "average_max", "generalized_mean", or for timm "backbone", its
            own; "default" takes the paper's for the backbone (max for BN-Inception, else average).
        batch_norm: "trained"; "frozen_statistics", which keeps the running means and variances and
            trains scale and shift, as the authors' program does; or "frozen", both. "default" is
            frozen statistics for pretrained weights and trained for weights="none".
        weights: "imagenet", "package", "none", a Path or "path:<file>"; "default" takes the usual
            source of the backbone.
        preprocessing: Another size or normalization of the images than the backbone's own.
        heads: Sub-embeddings in place of the one linear layer.
        head: Another head than a linear layer; see `cbml.models.head_kinds`.
        reranker: Name of the reranker that searches with this model use; None for none.
        seed: Random seed of the head's start values, and of the backbone's where no weights are
            loaded.
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
        heads: Sequence[Head] = (),
        head: HeadKind | None = None,
        reranker: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        row, heads = find_backbone(backbone), resolve_levels(heads, backbone)
        weights = row.weights if weights == "default" else weights
        if batch_norm == "default":
            batch_norm = "trained" if weights in ("none", "own") else "frozen_statistics"
        self.backbone_name, self.dim = backbone, _checked_dim(dim)
        self.pooling = row.pooling if pooling == "default" else pooling
        self.batch_norm = check_choice(batch_norm, "batch_norm", BATCH_NORMS)
        check_choice(self.pooling, "pooling", POOLINGS if row.prefix else POOLINGS[:-1])
        self.preprocessing = preprocessing or row.preprocessing
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.backbone = row.build(self.pooling)
            self.gem = GeneralizedMean() if self.pooling == "generalized_mean" else None
            self.head_kind = resolve_head(head, backbone, dim)
            self.head, *further = self._build_heads(row.features, heads)
        self.heads, self.reranker = heads, reranker
        self.provenance = load_weights(self.backbone, backbone, weights)
        self.streams = nn.ModuleDict(
            {
                f"stream_{number}": Stream(copy.deepcopy(self.backbone), each)
                for number, each in enumerate(further, start=2)
            }
        )
        if self.batch_norm == "frozen":
            for norm in _batch_norms(self):
                norm.requires_grad_(False)
        self.train()

    def _build_heads(self, features: int, heads: Sequence[Head]) -> list[nn.Module]:
        """The head, and those of further streams."""
        if heads:
            built = Heads(heads, self._widths(features, {head.tap for head in heads}))
            self.dim = _checked_dim(built.dim)
            return [built]
        kind = self.head_kind
        if isinstance(kind, ChannelAttention):
            if kind.streams > 1 and self.pooling == "backbone":
                raise BadData("streams: pooling 'backbone' hides the map; use pooling='average'")
            channels = self._widths(features, {kind.tap})[kind.tap]
            sizes = (channels, features, self.dim)
            return [AttentionHead(kind, *sizes, stream) for stream in range(kind.streams)]
        if kind is not None:
            return [FusionHead(kind, features, self.dim)]
        head = nn.Linear(features, self.dim)
        nn.init.kaiming_normal_(head.weight, mode="fan_out")
        nn.init.zeros_(head.bias)
        return [head]

    def _widths(self, last: int, taps: set[str]) -> dict[str, int]:
        """Channels of the maps at some depths; those within the backbone are seen in a trial."""
        if not taps - {LAST}:
            return {LAST: last}
        side, some = self.preprocessing.crop, next(self.backbone.parameters())
        self.backbone.eval()
        with torch.no_grad():
            maps = self._maps(torch.zeros(1, 3, side, side, device=some.device), taps)
        return {tap: found.shape[1] for tap, found in maps.items()} | {LAST: last}

    def forward(self, images: Tensor) -> Tensor:
        """Unit vectors, float32, (B, 3, H, W) -> (B, D).

        Args:
            images: Float images as `preprocessing` describes them.
        """
        if self.heads or self.head_kind is not None:
            return self.forward_outputs(images).embeddings
        features = self.features(images)
        with torch.autocast(images.device.type, enabled=False):
            return functional.normalize(self.head(features), dim=1)

    def at_crop(self, crop: int) -> Self:
        """The same network, with the same weights, for images of another size.

        Args:
            crop: Side of the square that it sees, in pixels.
        """
        other = copy.copy(self)
        other.preprocessing = self.preprocessing.with_crop(crop)
        return other

    def features(self, images: Tensor) -> Tensor:
        """Pooled features before the linear layer, float32, (B, 3, H, W) -> (B, C).

        Args:
            images: Float images as `preprocessing` describes them.
        """
        found: Tensor = self.backbone(images)
        with torch.autocast(images.device.type, enabled=False):
            return self._pooled(found)

    def forward_outputs(self, images: Tensor, parts: Sequence[str] = ()) -> Outputs:
        """Embeddings with the part of each head under its name, and further parts on request.

        Those are, all float32: "map", the backbone's last map (B, C, H, W), "features", pooled
        (B, C), and "raw", what the linear layer gives before the division by its length. Behind a
        colon stands another depth, a head or a stream: "map:layer3", "features:layer3",
        "raw:second", "features:stream_2". A model with one linear layer also has "cells:4", the
        unit vectors of 4 by 4 cells of the map, which are what the linear layer makes of each.
        (B, 16, D)

        Args:
            images: Float images as `preprocessing` describes them.
            parts: Names of the further ones.
        """
        asked = [(part, *part.partition(":")[::2]) for part in parts]
        taps = {head.tap for head in self.heads}
        taps |= {where for _, kind, where in asked if kind in ("map", "features")}
        maps = self._maps(images, taps - self.streams.keys())
        maps |= self._further_maps(images, maps[LAST])
        with torch.autocast(images.device.type, enabled=False):
            features = {tap: self._pooled(found) for tap, found in maps.items()}
            if isinstance(self.head, Heads):
                raw = self.head.raw(features)
                own = {name: functional.normalize(part, dim=1) for name, part in raw.items()}
                embeddings = self.head.embedding(own)
            elif isinstance(self.head, AttentionHead | FusionHead):
                raw = self.head.raw(features[LAST], images, self.preprocessing)
                for name, stream in self._further_streams():
                    raw |= stream.head.raw(features[name], images, self.preprocessing)
                own = {name: functional.normalize(part, dim=1) for name, part in raw.items()}
                embeddings = self.head.embedding(own)
                # Of several attentions the first stands for the image.
                maps, features = (
                    {where: found[: images.shape[0]] for where, found in each.items()}
                    for each in (maps, features)
                )
            else:
                raw, own = {"": self.head(features[LAST])}, {}
                embeddings = functional.normalize(raw[""], dim=1)
            kinds = {"map": maps, "features": features, "raw": raw}
            for part, kind, where in asked:
                if kind == "cells":
                    own[part] = self._cells(maps[LAST], int(where))
                    continue
                if where not in kinds.get(kind, {}):
                    raise BadData(f"part {part!r}: the model has map, features and raw, see docs")
                own[part] = kinds[kind][where].float()
        return Outputs(embeddings, own)

    def _cells(self, found: Tensor, side: int) -> Tensor:
        if not isinstance(self.head, nn.Linear) or found.dim() != 4:
            raise BadData("cells: only a model with one linear layer on a map has them")
        cells = cut_cells(found.float(), side)  # (B, C, side, side)
        return functional.normalize(self.head(cells.flatten(2).transpose(1, 2)), dim=2)

    def _further_streams(self) -> Iterator[tuple[str, Stream]]:
        for name, stream in self.streams.items():
            assert isinstance(stream, Stream)
            yield name, stream

    def _further_maps(self, images: Tensor, found: Tensor) -> dict[str, Tensor]:
        """The last map of each further stream, which sees a crop of what the one before saw."""
        maps = {}
        for name, stream in self._further_streams():
            if found.dim() != 4:
                raise BadData(f"streams: {self.backbone_name} gives no map to crop an image by")
            images = crop_to_object(images, found[: images.shape[0]])
            found = maps[name] = self._maps(images, set(), stream)[LAST]
        return maps

    def _maps(
        self, images: Tensor, taps: set[str], stream: nn.Module | None = None
    ) -> dict[str, Tensor]:
        """The backbone's last map under LAST, and those behind the modules that are tapped."""
        maps: dict[str, Tensor] = {}
        network: Any = self if stream is None else stream
        with contextlib.ExitStack() as hooks:
            for tap in taps - {LAST}:
                try:
                    module = network.backbone.get_submodule(tap)
                except AttributeError:
                    raise BadData(f"tap {tap!r}: {self.backbone_name} has no such module") from None

                def keep(_: nn.Module, __: object, output: Tensor, tap: str = tap) -> None:
                    maps[tap] = output

                hooks.callback(module.register_forward_hook(keep).remove)
            head = getattr(network, "head", None)  # not yet there when its width is looked for
            if isinstance(head, AttentionHead):

                def spread(_: nn.Module, __: object, output: Tensor) -> Tensor:
                    return head.spread(output)

                module = network.backbone.get_submodule(head.tap)
                hooks.callback(module.register_forward_hook(spread).remove)
            maps[LAST] = network.backbone(images)
        return maps

    def _pooled(self, found: Tensor) -> Tensor:
        found = found.float()
        if found.dim() == 2:
            return found
        if self.gem is not None:
            return self.gem(found)  # type: ignore[no-any-return]
        return pool(found, "average" if self.pooling == "backbone" else self.pooling)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation; frozen statistics stay frozen.

        Args:
            mode: True for training, False for inference.
        """
        super().train(mode)
        if self.batch_norm != "trained":
            for norm in _batch_norms(self):
                norm.eval()
        return self

    def parameter_groups(
        self, learning_rate: float, *, backbone_factor: float = 1.0
    ) -> list[dict[str, Any]]:
        """Two groups for an optimizer, "backbone" and "head", each with its learning rate.

        The networks of further streams belong to "backbone".

        Args:
            learning_rate: Learning rate of the head, and of a learned pooling power.
            backbone_factor: The backbone's learning rate as a multiple of it. The authors' program
                writes 0.1 but trains with 1.
        """
        networks = [self.backbone, *(stream.backbone for _, stream in self._further_streams())]
        backbone = [p for network in networks for p in network.parameters() if p.requires_grad]
        known = {id(parameter) for network in networks for parameter in network.parameters()}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in known]
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
            "heads": [head.as_dict() for head in self.heads],
            "head": head_as_dict(self.head_kind),
            "reranker": self.reranker,
        }

    def save(self, folder: str | Path, *, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the model in one step: an old model in the folder stays whole until then.

        Args:
            folder: Folder to write; made if missing.
            weights: An earlier `state_dict` of it to write instead of the present one.
        """
        tensors = self.state_dict() if weights is None else weights
        write_model(Path(folder), tensors, self.describe())

    @classmethod
    def load(cls, folder: str | Path) -> "Embedder":
        """The model saved in a folder, in evaluation mode; damage is refused before it is used.

        Args:
            folder: Folder written by `save`.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise BadData(f"{folder}: no such folder; give one that holds a saved model")
        tensors, settings = read_model(folder)
        if ":" in settings["backbone"] and not settings["backbone"].startswith("timm:"):
            find_backbone(settings["backbone"])  # code that nobody has given yet is not damage

        def build() -> Embedder:
            return cls(
                settings["backbone"],
                dim=settings["dim"],
                pooling=settings["pooling"],
                batch_norm=settings["batch_norm"],
                weights="none",
                preprocessing=Preprocessing.of(settings["preprocessing"]),
                heads=[Head.of(plain) for plain in settings["heads"]],
                head=head_of(settings.get("head")),
                reranker=settings["reranker"],
            )

        try:
            with torch.device("meta"):  # shapes first: settings that lie must not fill the memory
                _compare(build().state_dict(), tensors)
        except BadData as error:
            raise DamagedFile(f"{folder}: its settings do not fit its tensors ({error})") from None
        model = build()
        model.load_state_dict(tensors)
        model.provenance = settings["provenance"]
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
