"""Every set of pictures by its name: each function gives train, validation and test.

The benchmarks are split by their protocols and checked against the published counts; `folder` and
`table` take anybody's pictures.
"""

from collections.abc import Callable

from cbml.data.catalogue.cars import cars
from cbml.data.catalogue.cub import cub
from cbml.data.catalogue.emoji import emoji
from cbml.data.catalogue.folder import folder
from cbml.data.catalogue.imagenet import imagenet
from cbml.data.catalogue.inshop import inshop
from cbml.data.catalogue.sop import sop
from cbml.data.catalogue.table import table
from cbml.data.images import Splits

__all__ = ["DATASETS", "cars", "cub", "emoji", "folder", "imagenet", "inshop", "sop", "table"]

DATASETS: dict[str, Callable[..., Splits]] = {
    "cub": cub,
    "cars": cars,
    "sop": sop,
    "inshop": inshop,
    "imagenet": imagenet,
    "emoji": emoji,
    "folder": folder,
    "table": table,
}
