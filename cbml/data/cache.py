"""Where things that can be made again are kept."""

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """The folder named by CBML_CACHE, else `cbml` in the user's cache folder."""
    named = os.environ.get("CBML_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "cbml"
