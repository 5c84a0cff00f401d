"""Where the pictures of a set lie that is asked for by its bare name."""

import os
from pathlib import Path

from cbml.data.cache import cache_folder
from cbml.data.download import SOURCES
from cbml.errors import BadData

__all__ = ["named_set"]

# Beside a folder of the set's own name: what the official archives are called and unpack to.
_OFFICIAL: dict[str, tuple[str, ...]] = {
    "cub": ("CUB_200_2011", "CUB_200_2011.tgz"),
    "cars": ("stanford_cars", "car_ims.tgz"),
    "sop": ("Stanford_Online_Products", "Stanford_Online_Products.zip"),
    "inshop": ("In-shop Clothes Retrieval Benchmark",),
    "imagenet": ("ILSVRC",),
}


def named_set(name: str) -> Path:
    """The folder or archive of a set: in the folder named by CBML_DATA, else as it was fetched.

    Args:
        name: "cub", "cars", "sop", "inshop" or "imagenet".
    """
    own = os.environ.get("CBML_DATA")
    folders = [Path(own).expanduser()] if own else []
    for folder in [*folders, cache_folder() / "downloads"]:
        for candidate in (name, *_OFFICIAL[name]):
            if (folder / candidate).exists():
                return folder / candidate
    asked = f"in CBML_DATA ({own})" if own else "CBML_DATA is not set"
    fetch = f"fetch it with  cbml data get {name}"
    if not SOURCES[name].files:
        fetch = f"ask its owners for it, see {SOURCES[name].page}"
    names = ", ".join((name, *_OFFICIAL[name]))
    raise BadData(
        f"{name}: not found ({asked}, not fetched); {fetch}, give its folder or archive instead of "
        f"the name, or set CBML_DATA to the folder that holds one of: {names}"
    )
