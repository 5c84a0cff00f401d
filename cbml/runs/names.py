"""Names of losses, methods and backbones, checked before anything heavy is imported."""

from collections.abc import Collection

from cbml.errors import BadData, nearest
from cbml.losses import LOSSES
from cbml.methods import METHODS
from cbml.models import BACKBONE_NAMES
from cbml.runs.config import RunConfig


def check_names(config: RunConfig) -> None:
    """Refuse a misspelled loss, method or backbone, and a method that these labels do not suit.

    Names with a colon are classes of the user's own, or networks of timm; they are looked up later.

    Args:
        config: Names them.
    """
    names: tuple[tuple[str, str | None, Collection[str]], ...] = (
        ("method", config.method.name, METHODS),
        ("loss", config.loss.name, LOSSES),
        ("backbone", config.model.backbone, BACKBONE_NAMES),
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
    methods = {name: entry.title for name, entry in METHODS.items()}
    return {"losses": losses, "methods": methods}


def _first_line(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]
