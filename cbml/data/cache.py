"""Where things that can be made again are kept, and how processes take turns making them."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cache_folder", "locked"]


def cache_folder() -> Path:
    """The folder named by CBML_CACHE, else `cbml` in the user's cache folder."""
    named = os.environ.get("CBML_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "cbml"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; others who ask for it wait, and a killed holder lets go of it.

    Args:
        path: the lock file; made if missing, never deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
