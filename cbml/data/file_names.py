"""Labels that are part of file names, such as Abyssinian_12.jpg or 0001_c1_000151.jpg.

A pattern states how a name is made: {label} is the class, {n} is a number, and any other field,
such as {camera}, is a part without separators. The suffix of the file does not count.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cbml.errors import BadData

__all__ = ["find_pattern", "labels_from_names"]

_SHARE = 0.95  # of the names that must follow a pattern for it to be proposed
_ENDINGS = ("_{n}", "-{n}", ".{n}", " ({n})", " {n}", "{n}")
_CAMERAS = {"img", "image", "dsc", "dscn", "dscf", "pxl", "mvi", "photo", "picture", "screenshot"}


def find_pattern(paths: Sequence[Path]) -> str | None:
    """The first pattern that nearly all names follow and that gives classes of several images."""
    stems = [path.stem for path in paths]
    for pattern in [*_field_patterns(stems), *_number_patterns()]:
        found = [match["label"] for match in map(_compiled(pattern).fullmatch, stems) if match]
        if len(found) >= _SHARE * len(stems) and _plausible(found):
            return pattern
    return None


def labels_from_names(paths: Sequence[Path], pattern: str) -> list[str]:
    """The label of each file by its name; raises BadData where a name does not follow the pattern.

    Args:
        paths: the files.
        pattern: such as "{label}_{n}".
    """
    compiled = _compiled(pattern)
    matches = [compiled.fullmatch(path.stem) for path in paths]
    others = [path for path, match in zip(paths, matches, strict=True) if match is None]
    if others:
        raise BadData(
            f"{others[0].name}: does not follow the pattern {pattern}, as {len(others):,} of "
            f"{len(paths):,} names do not; state another by --label-from, or move these files away"
        )
    return [match["label"] for match in matches if match]


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w*)\}", pattern)  # text, field, text, field ... text
    if parts[1::2].count("label") != 1:
        raise BadData(f"--label-from {pattern}: name the class once, as in '{{label}}_{{n}}'")
    fields = {"label": r"(?P<label>\S.*)", "n": r"\d+"}
    return re.compile(
        "".join(
            fields.get(part, r"[^\s_.-]+") if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        )
    )


def _number_patterns() -> list[str]:
    """A name and up to three numbers behind it; most numbers first, as all of them count images."""
    return [f"{{label}}{ending * count}" for count in (3, 2, 1) for ending in _ENDINGS[:3]] + [
        f"{{label}}{ending}" for ending in _ENDINGS[3:]
    ]


def _field_patterns(stems: Sequence[str]) -> list[str]:
    """Names of as many fields each, of which the second tells a camera or a sequence: id_c1_7."""
    (fields, count), *_ = Counter(stem.count("_") + 1 for stem in stems).most_common(1)
    if fields < 3 or count < _SHARE * len(stems):
        return []
    split = [stem.split("_") for stem in stems]
    cameras = sum(bool(re.match(r"[A-Za-z]{0,4}\d", words[1])) for words in split if words[1:])
    if cameras < _SHARE * len(stems):
        return []
    return ["{label}_{camera}" + "_{frame}" * (fields - 2)]


def _plausible(labels: Sequence[str]) -> bool:
    """At least two classes of two images on average, and not the counter of a camera."""
    sizes = Counter(labels)
    cameras = all(label.casefold().rstrip("_- ") in _CAMERAS for label in sizes)
    letters = any(character.isalnum() for label in sizes for character in label)
    return len(sizes) > 1 and len(labels) >= 2 * len(sizes) and letters and not cameras
