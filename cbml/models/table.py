"""All backbones by name.

The table knows names and places alone, so that spelling is checked before torch is imported: a row
is imported when it is asked for.
"""

import pkgutil
from collections import UserDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbml.models.backbones import Backbone


class BackboneTable(UserDict[str, Any]):
    """Backbones by name, each imported when it is asked for.

    The data are names in `cbml.models.backbones`, or backbones that were added.
    """

    def __getitem__(self, name: str) -> "Backbone":
        row: str | Backbone = self.data[name]
        if isinstance(row, str):
            found: Backbone = pkgutil.resolve_name(f"cbml.models.backbones:{row}")
            return found
        return row


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
