"""Query parameters: one description reads them, refuses them and documents them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Parameter", "Refusal", "read_number", "read_parameters"]

_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{0,18})?", re.ASCII)


class Refusal(Exception):
    """A request that is answered by an error; `status` is its HTTP code, `message` one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Parameter:
    """A query parameter.

    Args:
        name: as in the address.
        kind: of its value.
        about: what it does, for the description.
        default: its value when it is not given.
        least: smallest number.
        most: largest number, or longest text.
        choices: the only values, for texts and whole numbers; all where there are none.
    """

    name: str
    kind: Literal["integer", "number", "boolean", "string"]
    about: str
    default: Any = None
    least: float = 0
    most: float = 200
    choices: tuple[Any, ...] = ()

    def read(self, text: str) -> Any:
        """The value of a text; raises Refusal where it has none.

        Args:
            text: as in the address, decoded.
        """
        if self.kind == "string":
            if len(text) > self.most:
                raise Refusal(400, f"{self.name}: longer than {self.most:g} characters")
            return self._chosen(text)
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise Refusal(400, f"{self.name}: must be true or false")
            return text == "true"
        pattern = _WHOLE if self.kind == "integer" else _DECIMAL
        value = float(text) if pattern.fullmatch(text) else -1.0
        if not self.least <= value <= self.most:
            raise Refusal(400, f"{self.name}: must be from {self.least:g} to {self.most:g}")
        return self._chosen(int(text) if self.kind == "integer" else value)

    def schema(self) -> dict[str, Any]:
        """Its description in OpenAPI."""
        schema: dict[str, Any] = {"type": self.kind}
        if self.kind in ("integer", "number"):
            schema |= {"minimum": self.least, "maximum": self.most}
        if self.kind == "string" and not self.choices:
            schema["maxLength"] = self.most
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        described = {"name": self.name, "in": "query", "required": False}
        return {**described, "description": self.about, "schema": schema}

    def _chosen(self, value: Any) -> Any:
        if self.choices and value not in self.choices:
            known = ", ".join(map(str, self.choices))
            raise Refusal(400, f"{self.name}: must be one of {known}")
        return value


def read_parameters(given: Iterable[tuple[str, str]], known: Sequence[Parameter]) -> dict[str, Any]:
    """The value of every known parameter; unknown and repeated ones are refused.

    Args:
        given: names and texts, in the order of the address.
        known: what may be given.
    """
    values = {parameter.name: parameter.default for parameter in known}
    by_name = {parameter.name: parameter for parameter in known}
    seen: set[str] = set()
    for name, text in given:
        if name not in by_name:
            names = ", ".join(by_name) or "none"
            raise Refusal(400, f"{name[:40]!r}: no such parameter; known: {names}")
        if name in seen:
            raise Refusal(400, f"{name}: given twice")
        seen.add(name)
        values[name] = by_name[name].read(text)
    return values


def read_number(text: str) -> int:
    """The id in an address; raises Refusal where there is none.

    Args:
        text: a part of the path.
    """
    if not _WHOLE.fullmatch(text):
        raise Refusal(404, "not the number of a picture")
    return int(text)
