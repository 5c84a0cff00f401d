"""Every choice of a run, in one typed and frozen `RunConfig`, and the words users write for it.

All of it is checked before anything heavy is imported.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_origin, get_type_hints

from cbml.errors import BadData, nearest
from cbml.losses import LOSSES
from cbml.methods import METHODS
from cbml.models import BACKBONES
from cbml.runs.defaults import FIRST_RUNS, defaults_for
from cbml.runs.old_records import current_sections
from cbml.runs.sections import (
    FLAT_KEYS,
    LENGTHS,
    SECTIONS,
    AugmentationConfig,
    Change,
    DataConfig,
    LossConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    PseudoLabelConfig,
    Section,
    TrainingConfig,
    changed_section,
    checked,
    kinds_of,
    plain_value,
)

if TYPE_CHECKING:
    from cbml.training import Settings


@dataclass(frozen=True, init=False)
class RunConfig:
    """Every choice of a run.

    A section is given as an object, as a mapping of the fields to set, or, for `data`, `model`,
    `loss` and `method`, as a name: `RunConfig(data="emoji", loss={"averaging": "log"})`. Some data
    and some methods have defaults of their own, which hold where nothing else is given: emoji are
    small, images without labels start as in the paper's section 4.7, and a method takes the crops
    and the optimizer of its authors.

    Args:
        data: Which images.
        augmentation: Random crops.
        model: The network.
        loss: The loss and its options.
        method: The training method around the loss.
        optimizer: The optimizer and its schedule.
        training: Batches and the loop.
        pseudo_labels: Learning without labels.
    """

    data: DataConfig
    augmentation: AugmentationConfig
    model: ModelConfig
    loss: LossConfig
    method: MethodConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    pseudo_labels: PseudoLabelConfig

    def __init__(
        self,
        data: DataConfig | Mapping[str, Any] | str,
        *,
        augmentation: AugmentationConfig | Mapping[str, Any] | None = None,
        model: ModelConfig | Mapping[str, Any] | str | None = None,
        loss: LossConfig | Mapping[str, Any] | str | None = None,
        method: MethodConfig | Mapping[str, Any] | str | None = None,
        optimizer: OptimizerConfig | Mapping[str, Any] | None = None,
        training: TrainingConfig | Mapping[str, Any] | None = None,
        pseudo_labels: PseudoLabelConfig | Mapping[str, Any] | None = None,
    ) -> None:
        images = changed_section(DataConfig(), data)
        assert isinstance(images, DataConfig)
        given: dict[str, Change] = {
            "data": images,
            "augmentation": augmentation,
            "model": model,
            "loss": loss,
            "method": method,
            "optimizer": optimizer,
            "training": training,
            "pseudo_labels": pseudo_labels,
        }
        chosen = changed_section(MethodConfig(), method)
        assert isinstance(chosen, MethodConfig)
        start = defaults_for(images, chosen)
        self._fill(
            {
                name: changed_section(changed_section(kind(), start.get(name)), given[name])
                for name, kind in SECTIONS.items()
            }
        )
        mines = self.loss.name == "cbml" and "mining_margin" not in self.loss.options
        uses_loss = chosen.name not in METHODS or METHODS[chosen.name].has_loss
        guessed = images.labels != "known"
        if guessed and mines and uses_loss and not isinstance(loss, LossConfig):
            object.__setattr__(self, "loss", changed_section(self.loss, {"mining_margin": None}))

    def _fill(self, sections: Mapping[str, Section]) -> None:
        for name, kind in SECTIONS.items():
            object.__setattr__(self, name, sections.get(name) or kind())
        self._check()

    def _check(self) -> None:
        _ = self.settings  # its own checks
        lengths = [name for name in LENGTHS if getattr(self.training, name) is not None]
        if len(lengths) > 1:
            raise BadData(f"{' and '.join(lengths)}: give one of them")
        if self.training.minutes is not None and not 0 < self.training.minutes < math.inf:
            raise BadData(f"minutes must be above zero, got {self.training.minutes:g}")
        for name in ("crop", "test_crop"):
            if (getattr(self.model, name) or 0) < 0:
                raise BadData(f"{name} must be at least 1, got {getattr(self.model, name)}")
        if self.loss.parameters == "from-data":
            if self.loss.name != "cbml":
                raise BadData("parameters=from-data: only the loss cbml has such constants")
            if "ratio" in self.loss.options:
                raise BadData("loss.ratio and parameters=from-data exclude each other: choose one")
            if self.data.labels == "each":
                raise BadData("parameters=from-data: needs clusters, and labels=each makes none")

    def replace(
        self,
        *,
        data: DataConfig | Mapping[str, Any] | str | None = None,
        augmentation: AugmentationConfig | Mapping[str, Any] | None = None,
        model: ModelConfig | Mapping[str, Any] | str | None = None,
        loss: LossConfig | Mapping[str, Any] | str | None = None,
        method: MethodConfig | Mapping[str, Any] | str | None = None,
        optimizer: OptimizerConfig | Mapping[str, Any] | None = None,
        training: TrainingConfig | Mapping[str, Any] | None = None,
        pseudo_labels: PseudoLabelConfig | Mapping[str, Any] | None = None,
    ) -> "RunConfig":
        """The config with some fields changed; `steps`, `epochs` and `minutes` replace each other.

        Args:
            data: Which images.
            augmentation: Random crops.
            model: The network.
            loss: The loss; a key that is not a field of `LossConfig` is an option of the loss.
            method: The method; likewise.
            optimizer: The optimizer and its schedule.
            training: Batches and the loop.
            pseudo_labels: Learning without labels.
        """
        changes: dict[str, Change] = {
            "data": data,
            "augmentation": augmentation,
            "model": model,
            "loss": loss,
            "method": method,
            "optimizer": optimizer,
            "training": training,
            "pseudo_labels": pseudo_labels,
        }
        changed = object.__new__(RunConfig)
        changed._fill(
            {name: changed_section(getattr(self, name), changes[name]) for name in SECTIONS}
        )
        return changed

    @property
    def own_code(self) -> dict[str, str]:
        """The options "loss", "method" and "backbone" that name code of the user's own."""
        named = {
            "loss": self.loss.name,
            "method": self.method.name or "",
            "backbone": self.model.backbone,
        }
        return {
            option: name
            for option, name in named.items()
            if ":" in name and not name.startswith("timm:")
        }

    @property
    def test_crop(self) -> int:
        """The side at which the trained network embeds images; open before a run starts."""
        return self.model.test_crop or self.model.crop

    @property
    def proxy_weight(self) -> float:
        """Weight of the proxies beside the pairs; where it is open, 0.5 beside CBML alone."""
        if self.loss.proxy_weight is not None:
            return self.loss.proxy_weight
        return 0.5 if self.loss.name == "cbml" and self.method.name is None else 0.0

    @property
    def settings(self) -> "Settings":
        """The choices of the training loop, as `cbml.fit` takes them."""
        from cbml.training import Settings

        loop = {**vars(self.optimizer), **vars(self.training), "optimizer": self.optimizer.name}
        # What is open is filled in when a run starts.
        if self.training.steps is None and self.training.epochs is None:
            loop["steps"] = FIRST_RUNS["cpu"]["folder"].steps
        loop["chunk_size"] = self.training.chunk_size or None
        loop["choose_by"] = self.training.choose_by or "recall@1"
        return Settings(
            **{option.name: loop[option.name] for option in dataclasses.fields(Settings)}
        )

    def as_dict(self) -> dict[str, Any]:
        """Every section by its name, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, sections: Mapping[str, Any], *, allow_code: bool = False) -> "RunConfig":
        """The config that `as_dict` described, or the flat recipe of an older record.

        A loss, method or backbone "package.module:name" is code that a file must not choose: it is
        refused unless `allow_code` says that nothing will be built from the config.

        Args:
            sections: As read back from JSON.
            allow_code: Accept what is the user's own.
        """
        sections = current_sections(sections)
        config = object.__new__(cls)
        try:
            parts = {
                name: changed_section(kind(), sections.get(name)) for name, kind in SECTIONS.items()
            }
            config._fill(parts)
        except (BadData, KeyError, TypeError) as error:
            raise BadData(f"run.json: not the config of a run of this version ({error})") from None
        if not config.data.source:
            raise BadData("run.json: not the config of a run of this version (it names no data)")
        if config.own_code and not allow_code:
            words = " ".join(f"--{option} {name}" for option, name in config.own_code.items())
            raise BadData(
                f"the run was started with {words}: code is never chosen by a file; repeat it: "
                f"{words}"
            )
        return config


def check_names(config: RunConfig) -> None:
    """Refuse a misspelled loss, method or backbone, and a method that these labels do not suit.

    Names with a colon are classes of the user's own, or networks of timm; they are looked up later.

    Args:
        config: Names them.
    """
    names: tuple[tuple[str, str | None, Collection[str]], ...] = (
        ("method", config.method.name, METHODS),
        ("loss", config.loss.name, LOSSES),
        ("backbone", config.model.backbone, BACKBONES),
    )
    for kind, name, known in names:
        if name is not None and ":" not in name and name not in known:
            more = "; others by 'timm:<name>'" if kind == "backbone" else ""
            raise BadData(f"{kind} {name!r}: no such {kind}; {nearest(name, known)}{more}")
    method, labels = config.method.name, config.data.labels
    if method in METHODS and METHODS[method].labels != labels:
        wanted = METHODS[method].labels
        raise BadData(f"--method {method}: learns with --labels {wanted}, not {labels}")


def list_methods() -> dict[str, dict[str, str]]:
    """The losses and the methods, each with one line about it."""
    losses = {name: _first_line(kind) for name, kind in LOSSES.items()}
    methods = {name: entry.title + _condition(name) for name, entry in METHODS.items()}
    return {"losses": losses, "methods": methods}


def _condition(method: str) -> str:
    """The labels that a method asks for, where they are not known."""
    labels = METHODS[method].labels
    alone = ", without --method" if method == "pseudo_labels" else ""
    return "" if labels == "known" else f" (--labels {labels}{alone})"


def _first_line(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]


_OPTIONS = ("loss", "method")  # sections whose further keys are options of what they name


def parse_overrides(
    texts: Iterable[str], given: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Changes by section and field, as `RunConfig` and `RunConfig.replace` take them.

    This is the one place where text becomes settings.

    Args:
        texts: "key=value" each; a key is a field, "section.field", or "loss." or "method." and an
            option.
        given: Values of fields by their flat names, such as "crop"; texts count more.
    """
    changes: dict[str, dict[str, Any]] = {}
    for key, value in (given or {}).items():
        _change(changes, *FLAT_KEYS[key], value)
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadData(f"--set {text}: write key=value")
        section, field = _place(key)
        hint = get_type_hints(SECTIONS[section]).get(field)
        typed = plain_value(value) if hint is None else _typed(hint, key, value)
        _change(changes, section, field, typed)
    return changes


def _change(changes: dict[str, dict[str, Any]], section: str, field: str, value: Any) -> None:
    """Note a value; of the lengths of a run the later one counts."""
    part = changes.setdefault(section, {})
    if field in LENGTHS and value is not None:
        for name in LENGTHS:
            part.pop(name, None)
    part[field] = value


def _place(key: str) -> tuple[str, str]:
    """The section and the field, or the option, that a key names."""
    if key in FLAT_KEYS:
        return FLAT_KEYS[key]
    section, dot, field = key.partition(".")
    if dot and field and section in SECTIONS:
        fields = get_type_hints(SECTIONS[section])
        if (field in fields and field != "options") or section in _OPTIONS:
            return section, field
        raise BadData(f"--set {key}: no such setting; {nearest(field, sorted(fields))}")
    raise BadData(f"--set {key}: no such setting; {nearest(key, sorted(FLAT_KEYS))}")


def _typed(hint: Any, key: str, text: str) -> Any:
    """A text as the value of a field; what does not fit the field is refused."""
    kinds, value = kinds_of(hint), plain_value(text)
    if get_origin(hint) is Literal or (str in kinds and not (value is None and None in kinds)):
        value = text
    try:
        return checked(key, hint, value)
    except BadData as error:
        raise BadData(f"--set {key}={text}: {error}") from None
