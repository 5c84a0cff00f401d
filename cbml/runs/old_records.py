"""Records of earlier versions, read under today's names."""

from collections.abc import Mapping
from typing import Any

from cbml.runs.sections import FLAT_KEYS, plain_value

_KEYS = {
    "pictures": "images",
    "pictures_per_class": "samples_per_class",
    "optimiser": "optimizer",
    "test_looks": "test_evaluations",
    "map_at_r": "map@r",
    "held-out map_at_r": "held-out map@r",
    "rates": "learning_rates",
    "rate_from": "learning_rate_from",
    "protocol": "model_selection",
    "bad_numbers": "non_finite",
}
_VALUES = {
    "model_selection": {"honest": "validation", "paper": "test"},
    "learning_rate_from": {"recipe": "config"},
}


def with_current_names(record: Any) -> Any:
    """A record, or any part of one, with the keys of this version.

    Args:
        record: As read from JSON; what is already of this version stays as it is.
    """
    if isinstance(record, Mapping):
        return dict(_current(key, value) for key, value in record.items())
    return [with_current_names(part) for part in record] if isinstance(record, list) else record


def _current(key: str, value: Any) -> tuple[str, Any]:
    key = _KEYS.get(key, key)
    if key == "overrides" and isinstance(value, list):  # "key=value" each
        pairs = (text.partition("=") for text in value)
        return key, {name: plain_value(text) for name, _, text in pairs}
    if key in _VALUES and isinstance(value, str):
        return key, _VALUES[key].get(value, value)
    return key, with_current_names(value)


_FIELDS = FLAT_KEYS | {"loss_options": ("loss", "options")}


def current_sections(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sections of a config that any version wrote into run.json.

    Args:
        config: Sections, or the flat recipe of older versions, with the loop's choices below
            "settings".
    """
    if "backbone" not in config:
        training = config.get("training")
        # Options of a loss or method are the user's, whatever their names.
        return {**config, "training": with_current_names(training)} if training else config
    flat = with_current_names(config)
    flat |= flat.pop("settings", {})
    sections: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        section, field = _FIELDS.get(key, ("data", key))
        sections.setdefault(section, {})[field] = value
    return sections
