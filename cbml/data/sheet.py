"""A contact sheet: what a dataset holds and how it was split, at a glance."""

import re
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from cbml.data.decode import UnreadableImage, read_image
from cbml.data.image_dataset import ImageDataset, Splits
from cbml.files import replaced_file

__all__ = ["contact_sheet"]

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
        splits: what a function of the catalog gave.
        path: the file to create or replace.
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
