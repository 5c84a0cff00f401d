"""What users write: names of losses, methods and backbones, and `--set key=value`.

All of it is checked before anything heavy is imported.
"""

import types
from collections.abc import Collection, Iterable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cbml.errors import BadData, nearest
from cbml.losses import LOSSES
from cbml.methods import METHODS
from cbml.models import BACKBONES
from cbml.runs.config import RunConfig
from cbml.runs.sections import FLAT_KEYS, LENGTHS, SECTIONS, plain_value


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


def parse_overrides(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Changes by section and field, as `RunConfig` and `RunConfig.replace` take them.

    This is the one place where text becomes settings.

    Args:
        texts: "key=value" each; a key is a field, "section.field", or "loss." or "method." and an
            option.
    """
    changes: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadData(f"--set {text}: write key=value")
        section, field = _place(key)
        hint = get_type_hints(SECTIONS[section]).get(field)
        typed = plain_value(value) if hint is None else _typed(hint, key, value)
        part = changes.setdefault(section, {})
        part[field] = typed
        if field in LENGTHS and typed is not None:  # the later word counts
            changes[section] = {name: part[name] for name in part if name not in LENGTHS}
            changes[section][field] = typed
    return changes


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
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise BadData(f"--set {key}={text}: use one of {', '.join(get_args(hint))}")
        return text
    value = plain_value(text)
    if value is None and types.NoneType in kinds:
        return None
    if float in kinds and type(value) is int:
        return float(value)
    if str in kinds:
        return text
    if type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds if kind is not types.NoneType)
        raise BadData(f"--set {key}={text}: needs {names}")
    return value
