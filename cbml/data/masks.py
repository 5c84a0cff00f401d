"""Folders of masks beside the images they belong to, told by names and by pixels.

No sign is enough alone: classes number their files alike, and drawings have few colors too. Two of
three are asked for: the folder is called so, its files repeat the names of others, its images are
palette or gray images of few values.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from cbml.data.decode import open_regular

__all__ = ["find_masks"]

_NAMES = re.compile(
    r"(.*[ _-])?(masks?|annotations?|segmentations?|segmentationclass|trimaps?|gt|groundtruth)",
    re.IGNORECASE,
)
_REPEATED = 0.9
_FEW_VALUES = 32
_SAMPLES = 3
_FOLDERS_TO_OPEN = 50  # with more, class folders are what they are


def find_masks(root: Path, folders: Mapping[Path, list[Path]]) -> dict[Path, str]:
    """Folders that seem to hold masks -> why; empty where nothing else would be left.

    Args:
        root: the folder that was named.
        folders: each folder below it that holds images, with the images.
    """
    found: dict[Path, str] = {}
    for folder, paths in folders.items():
        named = any(_NAMES.fullmatch(part) for part in folder.relative_to(root).parts)
        if not named and len(folders) > _FOLDERS_TO_OPEN:
            continue
        reasons = ["by name"] if named else []
        if _repeats(folder, folders):
            reasons.append("files named as others")
        if reasons and _few_values(paths):
            reasons.append("few values")
        if len(reasons) > 1:
            found[folder] = ", ".join(reasons)
    return found if len(found) < len(folders) else {}


def _repeats(folder: Path, folders: Mapping[Path, list[Path]]) -> bool:
    """Whether one other folder has a file of the same name for nearly each of this one's."""
    stems = {path.stem for path in folders[folder]}
    return any(
        len(stems & {path.stem for path in paths}) >= _REPEATED * len(stems)
        for other, paths in folders.items()
        if other != folder and len(paths) >= _REPEATED * len(stems)
    )


def _few_values(paths: list[Path]) -> bool:
    """Whether some of the images, evenly chosen, are all palette or gray images of few values."""
    step = max(1, len(paths) // _SAMPLES)
    for path in paths[::step][:_SAMPLES]:
        try:
            with (
                open_regular(path) as file,
                Image.open(file, formats=("PNG", "BMP", "GIF")) as image,
            ):
                if image.mode not in {"P", "L", "1"} or image.getcolors(_FEW_VALUES) is None:
                    return False
        except Exception:  # an unreadable image tells nothing; it is listed when it is decoded
            return False
    return bool(paths)
