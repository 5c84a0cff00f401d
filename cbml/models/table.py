"""All backbones by name.

The table knows names and places alone, so that spelling is checked before torch is imported: a row
is imported when it is asked for.
"""

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cbml.models.backbones import Backbone


class BackboneTable(MutableMapping[str, "Backbone"]):
    """Backbones by name, each imported when it is asked for.

    Args:
        locations: Name of a backbone -> its name in `cbml.models.backbones`.
    """

    def __init__(self, locations: Mapping[str, str]) -> None:
        self._rows: dict[str, str | Backbone] = dict(locations)

    def __getitem__(self, name: str) -> "Backbone":
        row = self._rows[name]
        if isinstance(row, str):
            found: Backbone = getattr(importlib.import_module("cbml.models.backbones"), row)
            return found
        return row

    def __setitem__(self, name: str, backbone: "Backbone") -> None:
        self._rows[name] = backbone

    def __delitem__(self, name: str) -> None:
        del self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"BackboneTable({', '.join(self)})"


#: Every backbone; those of timm are found as "timm:<name>" besides.
BACKBONES = BackboneTable(
    {
        "resnet18": "RESNET18",
        "resnet34": "RESNET34",
        "resnet50": "RESNET50",
        "resnet101": "RESNET101",
        "resnet152": "RESNET152",
        "resnet50_v1": "RESNET50_V1",
        "googlenet": "GOOGLENET",
        "bn_inception": "BN_INCEPTION",
        "efficientnet_lite0": "EFFICIENTNET_LITE0",
        "conv4": "CONV4",
    }
)
