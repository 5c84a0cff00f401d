"""What is in a folder, an archive or a table, and what is wrong with it; nothing is refused."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from cbml.data.datasets import find_dataset, load, recognize
from cbml.data.decode import UnreadableImage, UnreadableImages, prefetch, read_image
from cbml.data.discovery import ignored_files, image_folders, open_source, same_bytes
from cbml.data.image_dataset import ImageDataset, Splits
from cbml.data.splits import unlabeled_splits
from cbml.data.table import TABLE_SUFFIXES, find_metadata
from cbml.errors import BadData, MissingExtra
from cbml.files import replaced_file

Progress = Callable[[int, int], None]

_NAMED = 3


@dataclass(frozen=True)
class Report:
    """What `check` found; paths are relative to the dataset's folder.

    Args:
        recognized: The name of the dataset, or "folder", "table" or "unreadable".
        record: What was decided when it was loaded: layout, counts, seed and the like.
        problems: What `cbml train` would refuse it for.
        conflicts: Groups of files with the same bytes and different labels.
        class_sizes: For each split the smallest, median and largest number of images of a class.
        largest: The classes with most images, and how many.
        smallest: The classes with fewest images, and how many.
        image_sizes: Median width and height, and how many are landscape, portrait and square.
        bad: Path and reason of every image that cannot be read.
        ignored: Files of a folder that are not images by their suffix, such as .xml.
        duplicates: Groups of files with the same bytes.
        across: Groups that are both in train and in test.
    """

    recognized: str
    record: dict[str, Any]
    problems: list[str]
    conflicts: list[list[str]]
    class_sizes: dict[str, dict[str, float]]
    largest: dict[str, int]
    smallest: dict[str, int]
    image_sizes: dict[str, float]
    bad: list[tuple[str, str]]
    ignored: list[str]
    duplicates: list[list[str]]
    across: list[list[str]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def load_anyway(
    source: Path | str, name: str | None = None, options: Mapping[str, Any] | None = None
) -> Splits:
    """Like `load`, but problems are listed in `record["problems"]` instead of raised.

    Args:
        source: A folder, archive or table, as for `load`.
        name: Name of the dataset, as for `load`.
        options: Keyword arguments for `load`.
    """
    chosen = dict(options or {})
    if name not in (None, "folder", "table"):
        find_dataset(str(name))  # a misspelled name is no property of the folder
    try:
        return load(source, name, **chosen)
    except (BadData, MissingExtra) as error:
        refusal = error
    try:
        partial = load(source, name, **{**chosen, "allow_partial": True})
    except (BadData, MissingExtra):
        place = Path(source).expanduser()
        if not os.path.lexists(place):
            raise refusal from None
        partial = _everything(place, name)
    if isinstance(refusal, MissingExtra):
        extra = {"problems": [f"{source}: {refusal}"], "missing_extra": refusal.extra}
        partial.record.update(extra)
    else:
        partial.record["problems"] = [str(refusal)]
    return partial


def _everything(source: Path, name: str | None) -> Splits:
    """All images below a folder, without labels; none of what cannot be opened."""
    try:
        known_as = name or recognize(source)
        root = open_source(source)
        paths = [path for _, images in image_folders(root) for path in images]
    except BadData:
        if os.path.isfile(source) and source.suffix.lower() in TABLE_SUFFIXES:
            return unlabeled_splits("table", source, "a table", ())
        what = "a folder" if os.path.isdir(source) else "a file"
        return unlabeled_splits("unreadable", source, what, ())
    splits = unlabeled_splits("folder", root, "all images below it", paths)
    if known_as != "folder":
        splits.record["known_as"] = "folder"  # what `load` must be told to read it so, too
    return splits


def check(splits: Splits, *, workers: int = 2, progress: Progress | None = None) -> Report:
    """Read every image of a dataset once and tell what is wrong with it.

    Args:
        splits: The result of `load` or of a dataset.
        workers: Number of images decoded at once.
        progress: Called with images done and images in all.
    """
    parts = splits.parts()
    root = Path(str(splits.record.get("root", ".")))
    root = root if root.is_dir() else root.parent
    entries = [(name, part, index) for name, part in parts.items() for index in range(len(part))]
    paths = [images.paths[index] for _, images, index in entries]
    shown = [_below(root, path) for path in paths]
    sizes, reasons = _read_all(paths, workers, progress)
    groups = same_bytes(paths)
    labels = [_label(images, index) for _, images, index in entries]
    learned = [name in {"train", "validation"} for name, _, _ in entries]
    counts = Counter(label for label in labels if label is not None)

    def listed(test: Callable[[list[int]], bool]) -> list[list[str]]:
        return [[shown[index] for index in group] for group in groups if test(group)]

    return Report(
        recognized=str(splits.record.get("dataset", "folder")),
        record=splits.record,
        problems=splits.record.get("problems", []) + _too_many(parts["train"], shown, reasons),
        conflicts=listed(lambda group: len({labels[index] for index in group}) > 1),
        class_sizes={
            name: _class_sizes(images)
            for name, images in parts.items()
            if images.labels is not None and len(images)
        },
        largest=dict(counts.most_common(_NAMED)),
        smallest=dict(sorted(counts.items(), key=lambda item: (item[1], item[0]))[:_NAMED]),
        image_sizes=_image_sizes(sizes),
        bad=[(shown[index], why) for index, why in reasons.items()],
        ignored=_ignored(splits, root),
        duplicates=listed(lambda group: True),
        across=listed(lambda group: len({learned[index] for index in group}) > 1),
    )


def _too_many(train: ImageDataset, shown: Sequence[str], reasons: Mapping[int, str]) -> list[str]:
    """What training would be refused with if more of its images are unreadable than it allows.

    Training images come first among all that were read.
    """
    unreadable = UnreadableImages([Path(name) for name in shown[: len(train)]])
    try:
        unreadable.add_all({index: why for index, why in reasons.items() if index < len(train)})
    except BadData as error:
        return [str(error)]
    return []


def _label(images: ImageDataset, index: int) -> str | None:
    return None if images.labels is None else images.class_names[int(images.labels[index])]


def _below(root: Path, path: Path) -> str:
    return os.path.relpath(path, root) if path.is_relative_to(root) else str(path)


def _read_all(
    paths: Sequence[Path], workers: int, progress: Progress | None
) -> tuple[list[tuple[int, int]], dict[int, str]]:
    """Width and height of the images that can be read; index and reason of the others."""

    def read(path: Path) -> tuple[int, int] | str:
        try:
            return read_image(path).size
        except UnreadableImage as refusal:
            return refusal.reason

    sizes: list[tuple[int, int]] = []
    reasons: dict[int, str] = {}
    results = prefetch(read, paths, workers=workers, ahead=4 * workers)
    with contextlib.closing(results):
        for index, result in enumerate(results):
            if isinstance(result, str):
                reasons[index] = result
            else:
                sizes.append(result)
            if progress is not None:
                progress(index + 1, len(paths))
    return sizes, reasons


def _image_sizes(sizes: Sequence[tuple[int, int]]) -> dict[str, float]:
    if not sizes:
        return {}
    width, height = np.array(sizes).T
    return {
        "median_width": float(np.median(width)),
        "median_height": float(np.median(height)),
        "landscape": int((width > height).sum()),
        "portrait": int((width < height).sum()),
        "square": int((width == height).sum()),
    }


def _ignored(splits: Splits, root: Path) -> list[str]:
    """Only of users' own folders: the lists of a benchmark are no images and not ignored."""
    if splits.record.get("dataset") != "folder":
        return []
    read = set(find_metadata(root).values())
    return [_below(root, path) for path in ignored_files(root) if path not in read]


def _class_sizes(images: ImageDataset) -> dict[str, float]:
    sizes = images.class_sizes()
    sizes = sizes[sizes > 0]
    return {
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
    }


# A contact sheet: what a dataset holds and how it was split, at a glance.

_SIDE = 96
_GAP = 8
_LABELS = 210
_TITLE = 40
_COLUMNS = 8
_ROWS = 6
_INK, _FAINT, _PAPER, _FRAME = (32, 33, 36), (110, 113, 118), (255, 255, 255), (222, 224, 228)


def contact_sheet(splits: Splits, path: Path) -> None:
    """Write a PNG with some images of some classes of each split, evenly chosen.

    Args:
        splits: What a function of the catalog gave.
        path: The file to create or replace.
    """
    bands = [_band(name, images) for name, images in splits.parts().items() if len(images)]
    width = 2 * _GAP + _LABELS + _COLUMNS * (_SIDE + _GAP)
    sheet = Image.new("RGB", (width, sum(band.height for band in bands) + _GAP), _PAPER)
    top = 0
    for band in bands:
        sheet.paste(band, (0, top))
        top += band.height
    with replaced_file(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)


def _band(name: str, images: ImageDataset) -> Image.Image:
    """The rows of one split below its title."""
    rows = _chosen(images)
    width = 2 * _GAP + _LABELS + _COLUMNS * (_SIDE + _GAP)
    band = Image.new("RGB", (width, _TITLE + len(rows) * (_SIDE + _GAP)), _PAPER)
    draw = ImageDraw.Draw(band)
    title = f"{len(images):,} images"
    if images.labels is not None:
        classes = len(np.unique(images.labels))
        title += f", {classes:,} classes" + (f", {len(rows)} shown" if classes > len(rows) else "")
    large = ImageFont.load_default(size=18)
    draw.text((2 * _GAP, 12), name, fill=_INK, font=large)
    after = 2 * _GAP + draw.textlength(name, font=large) + 12
    draw.text((after, 16), title, fill=_FAINT, font=ImageFont.load_default(size=13))
    for number, (label, paths) in enumerate(rows):
        top = _TITLE + number * (_SIDE + _GAP)
        _write_label(draw, label, top)
        for column, path in enumerate(paths):
            left = 2 * _GAP + _LABELS + column * (_SIDE + _GAP)
            band.paste(_thumbnail(path), (left, top))
            draw.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), outline=_FRAME)
    return band


def _chosen(images: ImageDataset) -> list[tuple[str, list[Path]]]:
    """Class name and images of each row; without labels simply the first images."""
    if images.labels is None:
        places = np.unique(np.linspace(0, len(images) - 1, _ROWS * _COLUMNS).astype(int))
        paths = [images.paths[place] for place in places.tolist()]
        return [("", paths[i : i + _COLUMNS]) for i in range(0, len(paths), _COLUMNS)]
    present = np.unique(images.labels)
    rows = []
    for place in np.unique(np.linspace(0, len(present) - 1, _ROWS).astype(int)).tolist():
        members = np.flatnonzero(images.labels == present[place])
        spread = np.unique(np.linspace(0, len(members) - 1, _COLUMNS).astype(int))
        name = images.class_names[int(present[place])]
        rows.append((name, [images.paths[member] for member in members[spread].tolist()]))
    return rows


def _write_label(draw: ImageDraw.ImageDraw, label: str, top: int) -> None:
    """The class name in at most four lines; the middle of a longer one is left out."""
    font = ImageFont.load_default(size=13)
    lines = [""]
    for word in re.findall(r"[^ _/-]{1,20}[ _/-]?|[ _/-]", label):
        if lines[-1] and draw.textlength(lines[-1] + word, font=font) > _LABELS - 2 * _GAP:
            lines.append("")
        lines[-1] += word
    if len(lines) > 4:
        lines = [*lines[:2], "…", lines[-1]]
    start = top + (_SIDE - 17 * len(lines)) // 2
    for number, line in enumerate(lines):
        draw.text((2 * _GAP, start + 17 * number), line, fill=_INK, font=font)


def _thumbnail(path: Path) -> Image.Image:
    tile = Image.new("RGB", (_SIDE, _SIDE), _PAPER)
    try:
        image = read_image(path)
    except UnreadableImage:
        ImageDraw.Draw(tile).text(
            (10, 38), "unreadable", fill=(176, 0, 32), font=ImageFont.load_default(size=13)
        )
        return tile
    # The center of very long images: a line of one pixel shows nobody anything.
    short = min(image.size)
    box = [(length - min(length, 2 * short)) // 2 for length in image.size]
    part = image.crop((box[0], box[1], image.width - box[0], image.height - box[1]))
    part = ImageOps.contain(part, (_SIDE, _SIDE), Image.Resampling.LANCZOS)
    tile.paste(part, ((_SIDE - part.width) // 2, (_SIDE - part.height) // 2))
    return tile
