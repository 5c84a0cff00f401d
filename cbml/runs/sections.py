"""The sections of a run's config: small frozen dataclasses whose defaults say where they come from.

Nothing here imports torch.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cbml.errors import BadData, check_choice, nearest
from cbml.training import LoopSettings, OptimizerSettings


@dataclass(frozen=True, kw_only=True)
class Section:
    """The base of all sections: values of a wrong type or an unknown choice are refused."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            name = f"{_name_of(type(self))}.{option.name}"
            object.__setattr__(self, option.name, checked(name, hints[option.name], value))


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
    """Which images, and how they are read.

    Args:
        source: A folder, an archive, a table, or the name of a dataset such as "emoji".
        labels: "known"; "none" clusters the images and learns from the clusters; "each" makes
            every image a class of its own, whose members are its crops.
        label_from: Pattern of the file names where the classes are part of them, such as
            "{label}_{n}"; "auto" recognizes it.
        known_as: Name of the dataset that the source is, where it is not recognized; "folder" or
            "table" for what only resembles one.
        split: "stated" takes the splits that a folder or table states; "classes" keeps the classes
            apart instead.
        path_column: A table's column of the files, where it has an unusual name.
        label_column: A table's column of the classes, where it has an unusual name.
        validation: Share of the training classes held out to choose the model; 0 for none. Ours:
            the paper chooses on the test classes.
        model_selection: "validation" chooses the model on held-out training classes; "test" trains
            on all training classes and chooses on the test, as the paper does: optimistic.
        bad_limit: Share of unreadable images above which the run fails.
        allow_partial: Accept an incomplete dataset.
        workers: Threads that prepare batches ahead.
    """

    source: str = ""
    labels: Literal["known", "none", "each"] = "known"
    label_from: str | None = None
    known_as: str | None = None
    split: Literal["stated", "classes"] = "stated"
    path_column: str | None = None
    label_column: str | None = None
    validation: float = 0.2
    model_selection: Literal["validation", "test"] = "validation"
    bad_limit: float = 0.05
    allow_partial: bool = False
    workers: int = 1


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig(Section):
    """Random crops of the training images.

    Args:
        min_area: Smallest share of the image's area in a crop. 0.16 in the authors' program.
        flip: Probability of a horizontal flip. 0.5 in the authors' program.
    """

    min_area: float = 0.16
    flip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.min_area <= 1:
            raise BadData(f"augmentation.min_area must be in (0, 1], got {self.min_area}")
        if not 0 <= self.flip <= 1:
            raise BadData(f"augmentation.flip must be in [0, 1], got {self.flip}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """The network and how it is computed.

    Args:
        backbone: A name in `cbml.BACKBONES`, or "package.module:function" for a network of your
            own. The default learns on a CPU, and pip brings its weights.
        dim: Size of the embedding. 512 in the paper's main tables.
        pooling: As for `Embedder`.
        batch_norm: As for `Embedder`.
        weights: As for `Embedder`.
        crop: Side of the square that the network sees, in pixels; 0 for that of a first run on the
            device, see `FIRST_RUNS`. 227 in the paper.
        test_crop: The same when the trained network embeds images; None for `crop`, as in the
            paper, 0 for a larger one where the network was pretrained, see `larger_crop`.
        start: Folder of a run or of a saved model to start from, instead of `weights`; it gives
            backbone, dim, pooling and batch_norm, too.
        precision: "float32", or "bfloat16" for the backbone; "default" for the device's.
        compile: Let torch.compile fuse the network.
    """

    backbone: str = "efficientnet_lite0"
    dim: int = 512
    pooling: str = "default"
    batch_norm: str = "default"
    weights: str = "default"
    crop: int = 0
    test_crop: int | None = None
    start: str | None = None
    precision: Literal["default", "float32", "bfloat16"] = "default"
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class LossConfig(Section):
    """The loss.

    Args:
        name: A name in `cbml.LOSSES`, or "package.module:Class" for a loss of your own.
        options: Options of the loss by name; `replace(loss={"averaging": "log"})` sets one.
        parameters: Constants of the loss: "given" by the options and the loss's defaults, or
            estimated "from-data" before the first step where the options do not give them.
            "default" estimates them for CBML on a pretrained network with known labels.
        proxy_weight: Weight of a proxy for each class beside the pairs, for any loss of pairs
            alone; see `WithProxies`. None for 0.5 beside CBML without a method, else 0.
    """

    name: str = "cbml"
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: Literal["default", "given", "from-data"] = "default"
    proxy_weight: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class MethodConfig(Section):
    """The training method around the loss.

    Args:
        name: A name in `cbml.METHODS`, or "package.module:Class" for a method of your own; None
            trains with the loss alone.
        options: Options of the method by name.
    """

    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Section, OptimizerSettings):
    """The optimizer and its schedule.

    Args:
        name: "adam" as in the authors' program, "adamw", or "sgd".
    """

    name: Literal["adam", "adamw", "sgd"] = "adam"


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Section, LoopSettings):
    """Batches and the loop.

    Args:
        steps: Updates of the weights; None for those of a first run on the device, see
            `FIRST_RUNS`.
        epochs: Passes over the images, instead of `steps`.
        minutes: Time that the run may take, instead of `steps`: seconds of an image are measured,
            and the crop, where it is open, and the steps follow. The config of the run then has
            these, and no minutes.
        seed: Random seed of held-out classes, batches, crops, start values and proxies.
        classes_per_batch: None for 15, as in the authors' program for CUB, for more where classes
            are small, or for all classes where there are fewer.
        samples_per_class: None for 8, as in the authors' program for CUB, for a third of a median
            class that is small, or for more where there are fewer than 15 classes.
        chunk_size: Images in one forward pass; 0 for the whole batch. None for as many as a run
            may take: on a CPU 3 GB, and half of what is free.
        choose_by: The validation score that chooses the model. None for "recall@1", for "map@r"
            where fewer than ten classes are held out, for "view_agreement" without labels.
        tensorboard: Write event files for TensorBoard as well.
    """

    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None
    seed: int = 0
    classes_per_batch: int | None = None
    samples_per_class: int | None = None
    chunk_size: int | None = None
    choose_by: str | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.seed < 2**31:  # what every library takes
            raise BadData(f"training.seed must be in [0, {2**31}), got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class PseudoLabelConfig(Section):
    """Learning from clusters, for `data.labels` "none".

    Args:
        clusters: How many; None for as many as pairs of images are nearest to each other.
        refresh_epochs: Epochs between two clusterings.
        cluster_by: "embedding", or "features", those before the linear layer, whitened.
        head_start: "random", or "whitened": the linear layer begins by whitening the features.
        batch_range: "80-200" draws a batch size for each epoch, as the paper's section 4.7; or one
            number.
        study: Compare the clusters with the labels that there are, to write down how well they are
            found; never to train or to choose.
    """

    clusters: int | None = None
    refresh_epochs: int = 1
    cluster_by: Literal["embedding", "features"] = "embedding"
    head_start: Literal["random", "whitened"] = "random"
    batch_range: str = "80-200"
    study: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        low, _, high = self.batch_range.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal()):
            raise BadData(f"batch_range={self.batch_range}: write 100, or 80-200")

    @property
    def batch_sizes(self) -> tuple[int, int]:
        """Smallest and largest batch."""
        low, _, high = self.batch_range.partition("-")
        return int(low), int(high or low)


SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "augmentation": AugmentationConfig,
    "model": ModelConfig,
    "loss": LossConfig,
    "method": MethodConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "pseudo_labels": PseudoLabelConfig,
}
# The fields of `pseudo_labels` that only clusters have.
OF_CLUSTERS = {"clusters", "refresh_epochs", "cluster_by"}
# The fields that say how long a run is; the later word counts.
LENGTHS = ("steps", "epochs", "minutes")
_LEADING = {"data": "source", "model": "backbone", "loss": "name", "method": "name"}

Change = Section | Mapping[str, Any] | str | None


def _flat_keys() -> dict[str, tuple[str, str]]:
    keys = {
        name: (section, name)
        for section, kind in SECTIONS.items()
        for name in get_type_hints(kind)
        if name not in ("name", "options", "source")
    }
    keys |= {section: (section, "name") for section in ("loss", "method", "optimizer")}
    return keys | {"data": ("data", "source")}


# Every field by a word of its own, such as "crop"; "loss" is the name of the loss, and so on.
FLAT_KEYS: dict[str, tuple[str, str]] = _flat_keys()


def plain_value(text: str) -> Any:
    """A number, True, False or None if the text reads like one, a list of numbers, else the text.

    Args:
        text: As typed.
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    listed = [plain_value(word) for word in text.split(",")] if "," in text else []
    numbers = listed and all(type(value) in (int, float) for value in listed)
    return listed if numbers else text


def changed_section(section: Section, change: Change) -> Section:
    """The section with some fields changed; further keys of `loss` and `method` are options.

    Args:
        change: Another section, a mapping, or the name that leads the section; None for nothing.
    """
    if change is None:
        return section
    name = _name_of(type(section))
    if isinstance(change, Section):
        if type(change) is not type(section):
            raise BadData(f"{name}: needs a {type(section).__name__}")
        return change
    if isinstance(change, str):
        if name not in _LEADING:
            raise BadData(f"{name}={change!r}: give a mapping of its fields")
        change = {_LEADING[name]: change}
    if not isinstance(change, Mapping):
        raise BadData(f"{name}={change!r}: give a mapping of its fields")
    fields = [option.name for option in dataclasses.fields(section)]
    known = {key: value for key, value in change.items() if key in fields}
    other = {key: value for key, value in change.items() if key not in fields}
    if isinstance(section, LossConfig | MethodConfig):
        options = known.get("options", section.options)
        known["options"] = {**options, **other} if isinstance(options, Mapping) else options
    elif other:
        key = next(iter(other))
        raise BadData(f"{name}.{key}: no such setting; {nearest(key, fields)}")
    if any(known.get(name) is not None for name in LENGTHS):
        known = dict.fromkeys(LENGTHS) | known
    return dataclasses.replace(section, **known)


def _name_of(kind: type[Section]) -> str:
    return next((name for name, known in SECTIONS.items() if known is kind), kind.__name__)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows, None among them as itself."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(None if kind is types.NoneType else kind for kind in kinds)


def checked(name: str, hint: Any, value: Any) -> Any:
    """The value, as a float where one is wanted; what does not fit its type is refused."""
    if get_origin(hint) is Literal:
        return check_choice(value, name, hint)
    kinds = kinds_of(hint)
    if float in kinds and type(value) is int:
        value = float(value)
    if get_origin(hint) is Mapping:
        fits = isinstance(value, Mapping)
    else:
        fits = (None if value is None else type(value)) in kinds
    if not fits or (isinstance(value, float) and math.isnan(value)):
        wanted = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        raise BadData(f"{name} must be {wanted}, got {value!r}")
    return dict(value) if isinstance(value, Mapping) else value
